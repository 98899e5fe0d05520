"""The script that moves a staged batch to its target keys and completes it, or does nothing.

    KEYS  1 control hash   2 units hash   3 history hash   4 set of the writer's staged partitions
          5 ... 4+S  the staged partitions, in the order in which they are applied
    ARGV  those of lua_store, for the batch's close
          then "half": the text that marks the batch in the units hash while it is written
          then S, and then S times the staged partition's entry and its member of the set

    answer {"OK"}                  the batch is in its keys and complete; what was staged is gone
           {"CHANGED"}             the ledger is not as it was read
           {"LOST", s, rows}       staged partition s (from 1) is not whole, and holds these rows
           {"BAD", s, key, reason} an operation of staged partition s does not fit its key
           {"HALF", partition, entry, problem}  this or an earlier try failed after its first write
           {"REFUSED", problem}    the server refused before the first write

Everything is counted, compared and validated before the first write, by the code of the chunk
script. A key may be in several partitions, so it is not enough to look at its present value: where
the largest of these and all that is added could leave what a counter may hold, each counter is
followed through the batch, as two doubles of Lua's, since one holds no more than 2^53: nine digits
below and the rest above. Target keys are not in KEYS; they were when they were staged.
"""

from __future__ import annotations

from spark_eoc.sinks.redis.commands import KINDS
from spark_eoc.sinks.redis.keys import BATCH
from spark_eoc.sinks.redis.lua_operations import operations_source
from spark_eoc.sinks.redis.lua_store import CHECKED_STORE

#: Reads all chunks of what is staged, and counts them; `enter(chunk)` declares what the operations
#: need.
READ = """
local half, S = take(), tonumber(take())
local chunks, members = {}, {}
for s = 1, S do
  local staged, entry = KEYS[4 + s], take()
  members[s] = take()
  local rows, count = string.match(entry, '^(%d+):%x+:%d+|(%d+)|')
  local found, sealed = 0, redis.call('HGET', staged, 'entry')
  local whole = sealed == entry and redis.call('HLEN', staged) == count + 1
  for c = 1, tonumber(count) do
    local packed = redis.call('HGET', staged, c)
    if packed then
      local keys, arguments = cmsgpack.unpack(packed)
      found = found + string.match(arguments[6], '^%d+')
      chunks[#chunks + 1] = {keys, arguments, s}
    end
  end
  if not whole or found ~= tonumber(rows) then return {'LOST', tostring(s), tostring(found)} end
end

local own = KEYS
local call, try = redis.call, redis.pcall
local KEYS, ARGV, n, F, ttl, NAMES, MASKS, COLUMNS, TTLS
local function enter(chunk)
  KEYS, ARGV = chunk[1], chunk[2]
  n, F, ttl = tonumber(ARGV[7]), tonumber(ARGV[8]), ARGV[9]
  NAMES, MASKS, COLUMNS = 9, 9 + F, 9 + 2 * F
  TTLS = COLUMNS + F * n
end
"""

#: `counter` and `double` over a whole batch. Where a counter is followed, what comes after a value
#: beyond the limit is refused, so nothing that a refused operation had added matters.
SUMS = """
local following, largest, added_up = false, 0, 0
local high, low, sums = {}, {}, {}
local function note(text, added)
  local size = math.abs(tonumber(text or '0'))
  if size > largest then largest = size end
  added_up = added_up + math.abs(tonumber(added))
end

local function name_of(i, part)
  local key = KEYS[i + 2]
  return part and #key .. ':' .. key .. part or key
end

local function plus(h, l, text)
  local sign, digits = 1, text
  if string.byte(text) == 45 then sign, digits = -1, string.sub(text, 2) end
  h = h + sign * (tonumber(string.sub(digits, 1, -10)) or 0)
  l = l + sign * tonumber(string.sub(digits, -9))
  local carry = math.floor(l / 1e9)
  return h + carry, l - carry * 1e9
end

local function beyond(h, l)
  return h > 4611686018 or (h == 4611686018 and l > 427387903)
      or h < -4611686019 or (h == -4611686019 and l < 572612097)
end

local function counter(i, text, part, added)
  if not following then
    local bad = whole(i, text)
    if not bad then note(text, added) end
    return bad
  end
  local name = name_of(i, part)
  local h, l = high[name], low[name]
  if not h then
    local bad = whole(i, text)
    if bad then return bad end
    h, l = plus(0, 0, text or '0')
  elseif beyond(h, l) then
    return {'BAD', i, 'the batch takes the value beyond 2^62'}
  end
  high[name], low[name] = plus(h, l, added)
  return nil
end

local function double(i, text, part, added)
  if not following then
    local bad = finite(i, text)
    if not bad then note(text, added) end
    return bad
  end
  local name = name_of(i, part)
  local sum = sums[name]
  if not sum then
    local bad = finite(i, text)
    if bad then return bad end
    sum = tonumber(text or '0')
  elseif math.abs(sum) > 1e300 then
    return {'BAD', i, 'the batch takes the value beyond 1e300'}
  end
  sums[name] = sum + tonumber(added)
  return nil
end
"""

_WRITE = f"""
local function validate_all()
  for c = 1, #chunks do
    enter(chunks[c])
    begin()
    for i = 1, n do
      local bad = validate(i)
      if bad and bad[1] == 'BAD' then
        return {{'BAD', tostring(chunks[c][3]), KEYS[i + 2], bad[3]}}
      end
      if bad then return bad end
    end
  end
end
local bad = validate_all()
if not bad and largest + added_up > SAFE then
  following = true
  bad = validate_all()
end
if bad then return bad end
local marked = try('HSET', own[2], '{BATCH}', half)
if type(marked) == 'table' and marked.err then return {{'REFUSED', marked.err}} end
local ok, failure = pcall(function()
  for c = 1, #chunks do
    enter(chunks[c])
    begin()
    for i = 1, n do write(i) end
  end
  local refused = store()
  if refused then error(refused, 0) end
  for s = 1, S do
    call('DEL', own[4 + s])
    call('SREM', own[4], members[s])
  end
  call('HDEL', own[2], '{BATCH}')
end)
if ok then return {{'OK'}} end
return {{'HALF', '{BATCH}', half, type(failure) == 'table' and failure.err or tostring(failure)}}
"""


def publish_script(command: str, on_null: str = "remove") -> str:
    """The script for one command; with ``on_null="keep"`` hset leaves NULL fields as they are."""
    operations = operations_source(command, on_null, SUMS)
    return CHECKED_STORE + READ + operations + safe_source(command) + _WRITE


def safe_source(command: str) -> str:
    """Up to where sums need not be followed: below the limits, since a double of this size is not
    exact."""
    return "local SAFE = " + ("4e18" if KINDS[command].adds == "integer" else "1e299")
