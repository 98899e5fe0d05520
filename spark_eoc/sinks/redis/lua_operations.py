"""The operations of each command in Lua: what must hold before the first write, and the write.

They are part of every script that writes to target keys. Around them that script declares

    KEYS, ARGV   target keys from KEYS[3] on, and the arguments below
    n, F, ttl    operations, columns, TTL: "" for none, seconds, or "column"
    NAMES, MASKS, COLUMNS, TTLS   where in ARGV these begin, less one: F names, F NULL masks ("" or
                 n times "0"/"1"), F columns of n values, n TTLs if ttl is "column"
    call, try    redis.call, redis.pcall

and they declare `begin()`, to be called for each set of arguments, `validate(i)`, which returns
{"BAD", i, reason}, {"REFUSED", problem} or nothing, and `write(i)`. All of `validate` comes before
the first `write`, since nothing is rolled back. Values stay strings throughout: as Lua numbers they
would lose digits beyond 2^53.

What is added to is checked by `counter` or `double`, of (i, present value, its part of the key,
what is added). A script with one operation a counter takes them as they are in `ONCE`.
"""

from __future__ import annotations

_HELPERS = """
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
local function whole(i, text)
  if not text or text == '0' then return nil end
  if not string.find(text, '^%-?[1-9]%d*$') then
    return {'BAD', i, 'the present value is not a whole number'}
  end
  if #text < 19 then return nil end
  local digits = string.gsub(text, '^%-', '')
  if #digits > 19 or (#digits == 19 and digits > '4611686018427387903') then
    return {'BAD', i, 'the present value is not within 2^62'}
  end
  return nil
end

local function finite(i, text)
  if not text then return nil end
  local number = tonumber(text)
  if not string.find(text, '^[-+]?[%d.]+[eE]?[-+]?%d*$') or not number
     or number ~= number or math.abs(number) > 1e300 or #text > 400
     -- Redis takes what is too small for its long double for no number at all.
     or (number == 0 and string.find(text, '^[-+]?[%d.]*[1-9]')) then
    return {'BAD', i, 'the present value is not a finite number'}
  end
  return nil
end

local seen, found_there
local function typed(i, command)
  local key = KEYS[i + 2]
  if key ~= seen then seen, found_there = key, problem(i, try(command, key)) end
  if found_there and found_there[1] == 'BAD' then return {'BAD', i, found_there[3]} end
  return found_there
end

local function expire(i)
  if ttl == '' then return end
  call('EXPIRE', KEYS[i + 2], ttl == 'column' and ARGV[TTLS + i] or ttl)
end

local begin = function() end
"""

#: For scripts in which nothing is added to twice.
ONCE = """
local counter, double = whole, finite
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
local plain, pairs_of_row
begin = function()
  plain, pairs_of_row = F <= 1000, {}
  for c = 1, F do if ARGV[MASKS + c] ~= '' then plain = false end end
  if plain then for c = 1, F do pairs_of_row[2 * c - 1] = ARGV[NAMES + c] end end
end

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
  return problem(i, value) or counter(i, value, nil, ARGV[COLUMNS + i])
end
local function write(i)
  call('INCRBY', KEYS[i + 2], ARGV[COLUMNS + i])
  expire(i)
end
"""

_INCRBYFLOAT = """
local function validate(i)
  local value = try('GET', KEYS[i + 2])
  return problem(i, value) or double(i, value, nil, ARGV[COLUMNS + i])
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
    for c = first, last do
      local added = ARGV[COLUMNS + (c - 1) * n + i]
      bad = bad or counter(i, values[c - first + 1], ARGV[NAMES + c], added)
    end
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
  local member = ARGV[COLUMNS + n + i]
  local score = try('ZSCORE', KEYS[i + 2], member)
  return problem(i, score) or double(i, score, member, ARGV[COLUMNS + i])
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


def operations_source(command: str, on_null: str = "remove", sums: str = ONCE) -> str:
    """The Lua of one command; with ``on_null="keep"`` hset leaves NULL fields as they are.

    ``sums`` declares ``counter`` and ``double``.
    """
    body = _BODIES[command]
    if on_null == "keep":
        body = body.replace("REMOVE_NULLS = true", "REMOVE_NULLS = false")
    return _HELPERS + sums + body
