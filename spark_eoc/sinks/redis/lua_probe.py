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
