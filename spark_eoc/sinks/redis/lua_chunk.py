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
that never saw this script's answer. Values stay strings throughout: as Lua numbers they would lose
digits beyond 2^53.
"""

from __future__ import annotations

_HEAD = """
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

local function problem(i, reply)
  if type(reply) ~= 'table' or not reply.err then return nil end
  if string.find(reply.err, 'WRONGTYPE', 1, true) then
    return {'BAD', i, 'the key holds another type of value'}
  end
  return {'REFUSED', reply.err}
end

local function is_null(c, i)
  local mask = ARGV[MASKS + c]
  return mask ~= '' and string.byte(mask, i) == 49
end

-- Magnitudes are compared as text: 2^62 - 1 has 19 digits.
local function counter(i, text)
  if not text or text == '0' then return nil end
  if not string.find(text, '^%-?[1-9]%d*$') then
    return {'BAD', i, 'the present value is not a whole number'}
  end
  local digits = string.gsub(text, '^%-', '')
  if #digits > 19 or (#digits == 19 and digits > '4611686018427387903') then
    return {'BAD', i, 'the present value is not within 2^62'}
  end
  return nil
end

local function double(i, text)
  if not text then return nil end
  local number = tonumber(text)
  if not string.find(text, '^[-+]?[%d.]+[eE]?[-+]?%d*$') or not number
     or number ~= number or math.abs(number) > 1e300 then
    return {'BAD', i, 'the present value is not a finite number'}
  end
  return nil
end

local seen
local function typed(i, command)
  local key = KEYS[i + 2]
  if key == seen then return nil end
  seen = key
  return problem(i, try(command, key))
end

local function expire(i)
  if ttl == '' then return end
  call('EXPIRE', KEYS[i + 2], ttl == 'column' and ARGV[TTLS + i] or ttl)
end
"""

_TAIL = """
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

_SET = """
local function validate() end
local function write(i)
  if ttl == '' then return call('SET', KEYS[i + 2], ARGV[COLUMNS + i]) end
  call('SET', KEYS[i + 2], ARGV[COLUMNS + i], 'EX', ttl == 'column' and ARGV[TTLS + i] or ttl)
end
"""

_DEL = """
local function validate() end
local function write(i) call('DEL', KEYS[i + 2]) end
"""

# At most 1,000 fields go to one command: unpack gives up at some thousands.
_HSET = """
local function validate(i) return typed(i, 'HLEN') end
local plain = F <= 1000
for c = 1, F do if ARGV[MASKS + c] ~= '' then plain = false end end
local pairs_of_row = {}
if plain then for c = 1, F do pairs_of_row[2 * c - 1] = ARGV[NAMES + c] end end

local function write_some(i, key, first, last)
  local set, s, gone, g = {}, 0, {}, 0
  for c = first, last do
    if is_null(c, i) then
      g = g + 1
      gone[g] = ARGV[NAMES + c]
    else
      set[s + 1], set[s + 2] = ARGV[NAMES + c], ARGV[COLUMNS + (c - 1) * n + i]
      s = s + 2
    end
  end
  if s > 0 then call('HSET', key, unpack(set, 1, s)) end
  if g > 0 and REMOVE_NULLS then call('HDEL', key, unpack(gone, 1, g)) end
end

local function write(i)
  local key = KEYS[i + 2]
  if plain then
    for c = 1, F do pairs_of_row[2 * c] = ARGV[COLUMNS + (c - 1) * n + i] end
    call('HSET', key, unpack(pairs_of_row, 1, 2 * F))
  else
    for first = 1, F, 1000 do write_some(i, key, first, math.min(F, first + 999)) end
  end
  expire(i)
end
"""

_INCRBY = """
local function validate(i)
  local value = try('GET', KEYS[i + 2])
  return problem(i, value) or counter(i, value)
end
local function write(i)
  call('INCRBY', KEYS[i + 2], ARGV[COLUMNS + i])
  expire(i)
end
"""

_INCRBYFLOAT = """
local function validate(i)
  local value = try('GET', KEYS[i + 2])
  return problem(i, value) or double(i, value)
end
local function write(i)
  call('INCRBYFLOAT', KEYS[i + 2], ARGV[COLUMNS + i])
  expire(i)
end
"""

_HINCRBY = """
local function validate(i)
  for first = 1, F, 1000 do
    local last = math.min(F, first + 999)
    local values = try('HMGET', KEYS[i + 2], unpack(ARGV, NAMES + first, NAMES + last))
    local bad = problem(i, values)
    for c = 1, last - first + 1 do bad = bad or counter(i, values[c]) end
    if bad then return bad end
  end
end
local function write(i)
  for c = 1, F do
    call('HINCRBY', KEYS[i + 2], ARGV[NAMES + c], ARGV[COLUMNS + (c - 1) * n + i])
  end
  expire(i)
end
"""

_SADD = """
local function validate(i) return typed(i, 'SCARD') end
local function write(i)
  call('SADD', KEYS[i + 2], ARGV[COLUMNS + i])
  expire(i)
end
"""

_ZADD = """
local function validate(i) return typed(i, 'ZCARD') end
local function write(i)
  call('ZADD', KEYS[i + 2], ARGV[COLUMNS + i], ARGV[COLUMNS + n + i])
  expire(i)
end
"""

_ZINCRBY = """
local function validate(i)
  local score = try('ZSCORE', KEYS[i + 2], ARGV[COLUMNS + n + i])
  return problem(i, score) or double(i, score)
end
local function write(i)
  call('ZINCRBY', KEYS[i + 2], ARGV[COLUMNS + i], ARGV[COLUMNS + n + i])
  expire(i)
end
"""

_RPUSH = """
local function validate(i) return typed(i, 'LLEN') end
local function write(i)
  call('RPUSH', KEYS[i + 2], ARGV[COLUMNS + i])
  expire(i)
end
"""

_XADD = """
local function validate(i) return typed(i, 'XLEN') end
local function write(i)
  local entry, m = {}, 0
  for c = 1, F do
    if not is_null(c, i) then
      entry[m + 1], entry[m + 2] = ARGV[NAMES + c], ARGV[COLUMNS + (c - 1) * n + i]
      m = m + 2
    end
  end
  call('XADD', KEYS[i + 2], '*', unpack(entry, 1, m))
  expire(i)
end
"""

_BODIES = {
    "set": _SET,
    "hset": "local REMOVE_NULLS = true\n" + _HSET,
    "incrby": _INCRBY,
    "incrbyfloat": _INCRBYFLOAT,
    "hincrby": _HINCRBY,
    "sadd": _SADD,
    "zadd": _ZADD,
    "zincrby": _ZINCRBY,
    "rpush": _RPUSH,
    "xadd": _XADD,
    "del": _DEL,
}


def chunk_script(command: str, on_null: str = "remove") -> str:
    """The script for one command; with ``on_null="keep"`` hset leaves NULL fields as they are."""
    body = _BODIES[command]
    if on_null == "keep":
        body = body.replace("REMOVE_NULLS = true", "REMOVE_NULLS = false")
    return _HEAD + body + _TAIL
