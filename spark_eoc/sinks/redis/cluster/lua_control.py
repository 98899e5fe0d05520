"""The scripts beside the control entry: a task registers its slots; a step of the driver's is
stored, and a close empties the list.

REGISTER
    KEYS  1 control hash   2 units hash   3 touched   4 floors
    ARGV  1 token   2 batch id   3 partition   4 the partition's entry, to be stored in the units
          hash, with the call's epoch for its state   5 ... the slots that it will write to
    answer {"OK", floor, ...}   they may be written to; the floor of each, "0" for none
           {"MOVED", entry}     a copy of the task, of the same call, has registered other rows
           {"FENCED", epoch}    the token or the open batch is another; epoch "" = no control entry
           {"REFUSED", problem} the server refused before the first write

STORE is that of :mod:`spark_eoc.sinks.redis.lua_store`, whose units hash holds here what tasks
registered: that it is as it was read means that nobody has registered since.
    KEYS  1 ... 3 as there   4 touched   5 floors
"""

from __future__ import annotations

from spark_eoc.sinks.redis.lua_store import STORE_SCRIPT

REGISTER_SCRIPT = """
local control = redis.call('HMGET', KEYS[1], 'token', 'open_batch', 'epoch')
if control[1] ~= ARGV[1] or control[2] ~= ARGV[2] then return {'FENCED', control[3] or ''} end
local there = redis.call('HGET', KEYS[2], ARGV[3])
if there and there ~= ARGV[4] and string.match(there, '^%d+') == ARGV[2]
   and string.match(there, '[^|]*$') == string.match(ARGV[4], '[^|]*$') then
  return {'MOVED', there}
end
local set = redis.pcall('HSET', KEYS[2], ARGV[3], ARGV[4])
if type(set) == 'table' and set.err then return {'REFUSED', set.err} end
local answer = {'OK'}
for first = 5, #ARGV, 4000 do
  local last = math.min(#ARGV, first + 3999)
  redis.call('SADD', KEYS[3], unpack(ARGV, first, last))
  for _, floor in ipairs(redis.call('HMGET', KEYS[4], unpack(ARGV, first, last))) do
    answer[#answer + 1] = floor or '0'
  end
end
return answer
"""

_SETTLED = """
if completed ~= '' then
  local slots, fields = redis.call('SMEMBERS', KEYS[4]), {}
  for s = 1, #slots do
    fields[#fields + 1] = slots[s]
    fields[#fields + 1] = ARGV[1]
    if #fields == 4000 or s == #slots then
      redis.call('HSET', KEYS[5], unpack(fields))
      fields = {}
    end
  end
  redis.call('DEL', KEYS[4])
end
return {'OK'}
"""

_END = "return {'OK'}\n"
assert STORE_SCRIPT.endswith(_END)  # noqa: S101  the two parts are one script
CLUSTER_STORE_SCRIPT = STORE_SCRIPT.removesuffix(_END) + _SETTLED
