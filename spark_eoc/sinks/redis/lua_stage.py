"""The scripts that stage a partition: nothing that readers of the target see is written.

    STAGE_SCRIPT, for a chunk
    KEYS  1 control hash of the writer
          2 set of the writer's staged partitions
          3 ... 2+n  the target keys: only named, so that the server checks the right to them now
          3+n  hash of this staged partition
    ARGV  1 token   2 batch id   3 member of the set   4 the chunk's number   5 unused
          6 the chunk's fingerprint, then as in lua_chunk

    answer {"OK", bytes}, {"FENCED", epoch}, {"REFUSED", problem}

    SEAL_SCRIPT, when all are there
    KEYS  1 control hash   2 hash of this staged partition
    ARGV  1 token   2 batch id   3 chunks that must be there   4 the entry, then stored

    answer {"OK"}, {"FENCED", epoch}, {"REFUSED", problem}

    GIVEN_SCRIPT, for the rows of a chunk as the frame gave them, where dead letters are kept
    KEYS  1 control hash   2 set of the writer's staged partitions   3 hash of what the frame gave
    ARGV  1 token   2 batch id   3 member of the set   4 field   5 value

    answer {"OK"}, {"FENCED", epoch}, {"REFUSED", problem}

A chunk is kept as the chunk script would get it, packed with its keys into one string: values stay
the strings that they are, and one call reads it back. Staged again it is the same, so that a
doubtful chunk may simply be sent again.
"""

from __future__ import annotations

_FENCE = """
local control = redis.call('HMGET', KEYS[1], 'token', 'open_batch', 'epoch')
if control[1] ~= ARGV[1] or control[2] ~= ARGV[2] then return {'FENCED', control[3] or ''} end
"""

STAGE_SCRIPT = (
    _FENCE
    + """
local packed = cmsgpack.pack(KEYS, ARGV)
local added = redis.pcall('SADD', KEYS[2], ARGV[3])
if type(added) == 'table' and added.err then return {'REFUSED', added.err} end
redis.call('HSET', KEYS[#KEYS], ARGV[4], packed)
return {'OK', tostring(#packed)}
"""
)

SEAL_SCRIPT = (
    _FENCE
    + """
local expected, found = tonumber(ARGV[3]), redis.call('HLEN', KEYS[2])
if found - redis.call('HEXISTS', KEYS[2], 'entry') ~= expected then
  return {'REFUSED', 'TRYAGAIN what was staged is not all there'}
end
local set = redis.pcall('HSET', KEYS[2], 'entry', ARGV[4])
if type(set) == 'table' and set.err then return {'REFUSED', set.err} end
return {'OK'}
"""
)

GIVEN_SCRIPT = (
    _FENCE
    + """
local added = redis.pcall('SADD', KEYS[2], ARGV[3])
if type(added) == 'table' and added.err then return {'REFUSED', added.err} end
redis.call('HSET', KEYS[3], ARGV[4], ARGV[5])
return {'OK'}
"""
)
