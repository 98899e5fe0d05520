"""The script that applies one chunk: fence, compare, validate everything, write, set the entry.

    KEYS  1 control hash of the writer
          2 units hash of the writer
          3 ... 2+n  the target key of each operation
    ARGV  1 token   2 batch id   3 partition
          4 the unit entry that must be there ("" = none of this batch)
          5 the same with state "half": set by the first write, replaced by the last
          6 the unit entry to set
          7 n operations   8 F columns   9 TTL: "", seconds, or "column"
          then F names, F NULL masks ("" or n times "0"/"1"), F columns of n values,
          and n TTLs if ARGV[9] is "column"

    answer {"OK"}                      applied
           {"FENCED", epoch}           the token or the open batch is another; epoch "" = no control
           {"MOVED", entry}            the entry is another than ARGV[4], or of a newer batch;
                                       "" = none of this batch
           {"HALF", entry, problem}    an earlier or this try failed after its first write
           {"BAD", i, reason}          operation i (from 1) does not fit the key's present value
           {"REFUSED", problem}        the server refused before the first write

Neither Lua nor MULTI rolls back. So all reads and checks come before the first write, and that
first write marks the unit "half": whatever happens later, the mark tells every next try, also one
that never saw this script's answer.
"""

from __future__ import annotations

from spark_eoc.sinks.redis.lua_operations import operations_source

CHUNK_HEAD = """
local token, batch, partition, expected, half, done = unpack(ARGV, 1, 6)
local n, F, ttl = tonumber(ARGV[7]), tonumber(ARGV[8]), ARGV[9]
local call, try = redis.call, redis.pcall

local control = call('HMGET', KEYS[1], 'token', 'open_batch', 'epoch')
if control[1] ~= token or control[2] ~= batch then return {'FENCED', control[3] or ''} end

local unit = call('HGET', KEYS[2], partition) or ''
if unit ~= '' then
  if string.sub(unit, -5) == '|half' then return {'HALF', unit, 'an earlier try'} end
  if tonumber(string.match(unit, '^%d+')) < tonumber(batch) then unit = '' end
end
if unit ~= expected then return {'MOVED', unit} end

local NAMES, MASKS, COLUMNS = 9, 9 + F, 9 + 2 * F
local TTLS = COLUMNS + F * n
"""

_TAIL = """
begin()
for i = 1, n do
  local bad = validate(i)
  if bad then return bad end
end
local marked = try('HSET', KEYS[2], partition, half)
if type(marked) == 'table' and marked.err then return {'REFUSED', marked.err} end
local ok, failure = pcall(function()
  for i = 1, n do write(i) end
  call('HSET', KEYS[2], partition, done)
end)
if ok then return {'OK'} end
return {'HALF', half, type(failure) == 'table' and failure.err or tostring(failure)}
"""


def chunk_script(command: str, on_null: str = "remove") -> str:
    """The script for one command; with ``on_null="keep"`` hset leaves NULL fields as they are."""
    return CHUNK_HEAD + operations_source(command, on_null) + _TAIL
