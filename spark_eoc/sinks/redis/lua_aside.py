"""The chunk script of a writer that puts refused rows aside: their letters are of the same step.

    KEYS  as in lua_chunk, and at the end the stream of dead letters
    ARGV  as in lua_chunk (of operations that are to be written), and at the end
          L times a letter's offset ("" if unknown), column ("" if unknown), reason, and row
          then the writer_id, how many bad operations are to be named at most, and L

    answer as in lua_chunk, but
           {"BAD", i, reason, i, reason, ...}  all operations that don't fit, up to that many
           {"LETTERS", problem}                the stream can't take them

The caller sends the chunk again without what was named, and with its letters. So every letter is
in one script with the entry that counts its row, as the rows beside it are. XTRIM changes nothing
here: it asks whether there is a stream, or nothing, that this user may write to.
"""

from __future__ import annotations

from spark_eoc.sinks.redis.lua_chunk import CHUNK_HEAD
from spark_eoc.sinks.redis.lua_operations import operations_source

_TAIL = """
local L, most, writer = tonumber(ARGV[#ARGV]), tonumber(ARGV[#ARGV - 1]), ARGV[#ARGV - 2]
local LETTERS, stream = #ARGV - 3 - 4 * L, KEYS[#KEYS]

begin()
local bad = {'BAD'}
for i = 1, n do
  local found = validate(i)
  if found and found[1] ~= 'BAD' then return found end
  if found then
    bad[#bad + 1], bad[#bad + 2] = tostring(i), found[3]
    if #bad > 2 * most then break end
  end
end
if #bad > 1 then return bad end

if L > 0 then
  local there = try('XTRIM', stream, 'MAXLEN', '1000000000000000000')
  if type(there) == 'table' and there.err then
    local final = string.find(there.err, 'WRONGTYPE', 1, true) or
      string.find(there.err, 'NOPERM', 1, true) or string.find(there.err, "can't", 1, true)
    return {final and 'LETTERS' or 'REFUSED', there.err}
  end
end

local function put_aside(at)
  local offset, column, reason, row = unpack(ARGV, at + 1, at + 4)
  local entry = {'writer_id', writer, 'batch', batch, 'partition', partition}
  local function add(name, value)
    if value ~= '' then entry[#entry + 1], entry[#entry + 2] = name, value end
  end
  add('offset', offset)
  add('column', column)
  add('reason', reason)
  add('row', row)
  call('XADD', stream, '*', unpack(entry))
end

local marked = try('HSET', KEYS[2], partition, half)
if type(marked) == 'table' and marked.err then return {'REFUSED', marked.err} end
local ok, failure = pcall(function()
  for l = 0, L - 1 do put_aside(LETTERS + 4 * l) end
  for i = 1, n do write(i) end
  call('HSET', KEYS[2], partition, done)
end)
if ok then return {'OK'} end
return {'HALF', half, type(failure) == 'table' and failure.err or tostring(failure)}
"""

#: What the probe runs, on a key that no one uses.
ASIDE_COMMANDS = ("XADD K * f 1", "XTRIM K MAXLEN 1", "DEL K")


def aside_script(command: str, on_null: str = "remove") -> str:
    """The script for one command; ``on_null`` as in lua_chunk."""
    return CHUNK_HEAD + operations_source(command, on_null) + _TAIL
