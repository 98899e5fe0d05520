"""The script that stores an opened or a closed batch, if the ledger is still as it was read.

    KEYS  1 control hash   2 units hash   3 history hash
    ARGV  1 epoch, 2 token, 3 open batch, 4 last complete batch that must be there, "" if absent
          5 the batch whose units were read
          6 u, and then u times partition, entry: exactly these units of that batch must be there
          then "1" to delete units and history first, else ""
          then the batch below which units and history are forgotten, "" = none
          then c, and then c times field, value of the control hash
          then the history's batch and its text, or "" and ""

    answer {"OK"}                 stored
           {"CHANGED"}            something is not as it was read; nothing was stored
           {"HALF", partition, entry}  a unit of that batch failed after its first write
           {"REFUSED", problem}   the server refused before the first write

The control hash is written first, and by one command: if that is refused, nothing was stored.
"""

from __future__ import annotations

#: The first part of the script, without a write: returns if anything is not as it was read, reads
#: all arguments up to here by `take()`, and declares `store()`, which returns the problem of the
#: first write if the server refuses it.
CHECKED_STORE = """
local at = 0
local function take() at = at + 1; return ARGV[at] end

local control = redis.call('HMGET', KEYS[1], 'epoch', 'token', 'open_batch', 'last_complete')
for f = 1, 4 do
  if (control[f] or '') ~= take() then return {'CHANGED'} end
end

local batch = take()
local expected = tonumber(take())
for u = 1, expected do
  local partition = take()
  if (redis.call('HGET', KEYS[2], partition) or '') ~= take() then return {'CHANGED'} end
end
local stored = redis.call('HGETALL', KEYS[2])
local found = 0
for u = 1, #stored, 2 do
  local entry = stored[u + 1]
  if string.match(entry, '^%d+') == batch then
    found = found + 1
    if string.sub(entry, -5) == '|half' then return {'HALF', stored[u], entry} end
  end
end
if found ~= expected then return {'CHANGED'} end

local reset, below = take(), tonumber(take())
local fields = {}
for f = 1, 2 * tonumber(take()) do fields[f] = take() end
local completed, text = take(), take()
local control_key, units_key, history_key = KEYS[1], KEYS[2], KEYS[3]

local function store()
  local set = redis.pcall('HSET', control_key, unpack(fields))
  if type(set) == 'table' and set.err then return set.err end
  if reset ~= '' then redis.call('DEL', units_key, history_key) end
  if completed ~= '' then redis.call('HSET', history_key, completed, text) end
  if below then
    for _, old in ipairs(redis.call('HKEYS', history_key)) do
      if tonumber(old) < below then redis.call('HDEL', history_key, old) end
    end
  end
  if completed ~= '' then
    for u = 1, #stored, 2 do
      if tonumber(string.match(stored[u + 1], '^%d+')) < tonumber(completed) then
        redis.call('HDEL', units_key, stored[u])
      end
    end
  end
end
"""

STORE_SCRIPT = (
    CHECKED_STORE
    + """
local refused = store()
if refused then return {'REFUSED', refused} end
return {'OK'}
"""
)
