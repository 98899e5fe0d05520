"""The publish script of a writer that puts refused rows aside: their letters are of the same step.

    KEYS  as in lua_publish, then for each staged partition the hash of what the frame gave,
          and at the end the stream of dead letters
    ARGV  as in lua_publish, then the writer_id, how many bad operations are to be named at most,
          L, and L times a letter's partition, offset ("" if unknown), column ("" if unknown),
          reason, and row
          then X, and X times c, i: operation i of chunk c is left out, since its rows are letters;
          chunks are counted from 1 through all staged partitions

    answer as in lua_publish, but
           {"BAD", c, i, reason, c, i, reason, ...}  operations that don't fit, up to that many
           {"LETTERS", problem}                      the stream can't take them

The caller sends it again without what was named, and with its letters.
"""

from __future__ import annotations

from spark_eoc.sinks.redis.keys import BATCH
from spark_eoc.sinks.redis.lua_operations import operations_source
from spark_eoc.sinks.redis.lua_publish import READ, SUMS, safe_source
from spark_eoc.sinks.redis.lua_store import CHECKED_STORE

_LETTERS = """
local writer, most, letters, skipped = take(), tonumber(take()), {}, {}
for l = 1, tonumber(take()) do letters[l] = {take(), take(), take(), take(), take()} end
for x = 1, tonumber(take()) do
  local c, i = tonumber(take()), tonumber(take())
  skipped[c] = skipped[c] or {}
  skipped[c][i] = true
end
local stream = own[5 + 2 * S]
"""

_WRITE = f"""
local function each(act)
  for c = 1, #chunks do
    local skip = skipped[c] or {{}}
    enter(chunks[c])
    begin()
    for i = 1, n do
      if not skip[i] then
        local answer = act(i, c)
        if answer then return answer end
      end
    end
  end
end

local bad = {{'BAD'}}
local function check(i, c)
  local found = validate(i)
  if found and found[1] ~= 'BAD' then return found end
  if not found then return nil end
  local at = #bad
  bad[at + 1], bad[at + 2], bad[at + 3] = tostring(c), tostring(i), found[3]
  if #bad > 3 * most then return bad end
end
local answer = each(check)
if not answer and #bad == 1 and largest + added_up > SAFE then
  following = true
  answer = each(check)
end
if answer then return answer end
if #bad > 1 then return bad end

if #letters > 0 then
  local there = try('XTRIM', stream, 'MAXLEN', '1000000000000000000')
  if type(there) == 'table' and there.err then
    local final = string.find(there.err, 'WRONGTYPE', 1, true) or
      string.find(there.err, 'NOPERM', 1, true) or string.find(there.err, "can't", 1, true)
    return {{final and 'LETTERS' or 'REFUSED', there.err}}
  end
end

local names = {{'partition', 'offset', 'column', 'reason', 'row'}}
local function put_aside(letter)
  local entry = {{'writer_id', writer, 'batch', batch}}
  for f = 1, 5 do
    if letter[f] ~= '' then entry[#entry + 1], entry[#entry + 2] = names[f], letter[f] end
  end
  call('XADD', stream, '*', unpack(entry))
end

local marked = try('HSET', own[2], '{BATCH}', half)
if type(marked) == 'table' and marked.err then return {{'REFUSED', marked.err}} end
local ok, failure = pcall(function()
  for l = 1, #letters do put_aside(letters[l]) end
  each(function(i) write(i) end)
  local refused = store()
  if refused then error(refused, 0) end
  for s = 1, S do
    call('DEL', own[4 + s], own[4 + S + s])
    call('SREM', own[4], members[s])
  end
  call('HDEL', own[2], '{BATCH}')
end)
if ok then return {{'OK'}} end
return {{'HALF', '{BATCH}', half, type(failure) == 'table' and failure.err or tostring(failure)}}
"""


def publish_aside_script(command: str, on_null: str = "remove") -> str:
    """The script for one command; ``on_null`` as in lua_publish."""
    operations = operations_source(command, on_null, SUMS)
    return CHECKED_STORE + READ + _LETTERS + operations + safe_source(command) + _WRITE
