"""The script that runs every command that will be used, once, on keys under the ledger's prefix.

    KEYS  1 a hash key that no one uses   2 another key that no one uses
    ARGV  one command each, words separated by blanks; K stands for KEYS[2]

    answer {"OK"} or {"REFUSED", command, problem}

A user without the right to one of them, or a server that has renamed one, is found here, before
a row is written, and not in the middle of a chunk. Both keys are gone at the end.
"""

from __future__ import annotations

#: What the ledger itself needs, for the probe's first key.
LEDGER_COMMANDS = ("HSET L f 1", "HGET L f", "HMGET L f", "HGETALL L", "HKEYS L", "HDEL L f")

#: And in a cluster, for its list of slots.
CLUSTER_COMMANDS = ("SADD K m", "SMEMBERS K", "DEL K")
#: What batch atomicity needs besides, on keys of the ledger.
STAGING_COMMANDS = (
    "HSET L f 1", "HLEN L", "HEXISTS L f", "DEL L", "SADD L m", "SMEMBERS L", "SREM L m"
)  # fmt: skip

#: KEYS 1 and ARGV 1: two keys that no one uses. The second is written though it is not named as a
#: key, as keys of staged rows are; {"OK"} or {"REFUSED", problem}.
UNNAMED_KEY_SCRIPT = """
local packed = cmsgpack.pack(KEYS, ARGV)
local keys, arguments = cmsgpack.unpack(packed)
local reply = redis.pcall('HSET', arguments[1], 'f', packed)
redis.pcall('DEL', arguments[1])
if type(reply) == 'table' and reply.err then return {'REFUSED', reply.err} end
return {'OK'}
"""

PROBE_SCRIPT = """
local failed
for _, line in ipairs(ARGV) do
  local words = {}
  for word in string.gmatch(line, '%S+') do
    words[#words + 1] = word == 'K' and KEYS[2] or word == 'L' and KEYS[1] or word
  end
  local reply = redis.pcall(unpack(words))
  if type(reply) == 'table' and reply.err then
    failed = {'REFUSED', words[1], reply.err}
    break
  end
end
redis.pcall('DEL', KEYS[1], KEYS[2])
return failed or {'OK'}
"""
