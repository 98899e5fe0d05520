"""The scripts of a slot's entry: claim or fence it, settle it, read it; and the chunk's claim.

    KEYS  1 the slot's entry
    ARGV  1 token   2 batch id   3 epoch   4 floor ("0" if the slot was never settled)

    TAKE answers    {"OK"}                    the entry is this call's now
    SETTLE answers  {"OK", partition, unit, ...}  the same, and nobody writes here any more; the
                                              units of the batch
    READ answers    {"OK", partition, unit, ...}
    CHECK answers   {"OK"}                    the entry is as new as its floor

    or              {"FENCED", epoch}         the entry has a newer epoch
                    {"BEHIND", epoch, closed} the entry, or the control entry, has lost writes: it
                                              is older than its floor, or has this epoch with
                                              another call's token
                    {"REFUSED", problem}      the server refused before the first write

A chunk's script begins with the same claim; epoch and floor are its last two arguments, and its
two first keys are both the slot's entry.

What an entry still holds when it is claimed belongs to the open batch only if it was claimed since
the slot was last settled; then units of this batch stay. All others are of complete batches, also
where batch numbers began again with another query, and are deleted.
"""

from __future__ import annotations

from spark_eoc.sinks.redis.lua_aside import aside_script
from spark_eoc.sinks.redis.lua_chunk import chunk_script

_BEHIND = """
local function behind(key, floor)
  local seen = redis.call('HMGET', key, 'epoch', 'closed')
  if tonumber(seen[2] or '0') < tonumber(floor) then
    return {'BEHIND', seen[1] or '', seen[2] or ''}
  end
end
"""

_CLAIM = (
    _BEHIND
    + """
local function drop_old(key, batch, all)
  for _, field in ipairs(redis.call('HKEYS', key)) do
    if string.find(field, '^%d+$') then
      local unit = redis.call('HGET', key, field)
      if all or string.match(unit, '^%d+') ~= batch then redis.call('HDEL', key, field) end
    end
  end
end

local function claim(key, token, batch, epoch, floor)
  local refused = behind(key, floor)
  if refused then return refused end
  local seen = redis.call('HMGET', key, 'epoch', 'token', 'closed')
  local there, mine = tonumber(seen[1] or '0'), tonumber(epoch)
  if there > mine then return {'FENCED', seen[1]} end
  if there == mine then
    if seen[2] ~= token then return {'BEHIND', seen[1], seen[3] or ''} end
    return nil
  end
  local set = redis.pcall('HSET', key, 'epoch', epoch, 'token', token, 'open_batch', batch)
  if type(set) == 'table' and set.err then return {'REFUSED', set.err} end
  drop_old(key, batch, there == tonumber(floor))
end
"""
)

_UNITS = """
local function units(key, batch)
  local found, fields = {'OK'}, redis.call('HGETALL', key)
  for f = 1, #fields, 2 do
    if string.find(fields[f], '^%d+$') and string.match(fields[f + 1], '^%d+') == batch then
      found[#found + 1] = fields[f]
      found[#found + 1] = fields[f + 1]
    end
  end
  return found
end
"""

TAKE_SCRIPT = _CLAIM + "return claim(KEYS[1], ARGV[1], ARGV[2], ARGV[3], ARGV[4]) or {'OK'}"

SETTLE_SCRIPT = (
    _CLAIM
    + _UNITS
    + """
local refused = claim(KEYS[1], ARGV[1], ARGV[2], ARGV[3], ARGV[4])
if refused then return refused end
local set = redis.pcall('HSET', KEYS[1], 'open_batch', '', 'closed', ARGV[3])
if type(set) == 'table' and set.err then return {'REFUSED', set.err} end
return units(KEYS[1], ARGV[2])
"""
)

READ_SCRIPT = _UNITS + "return units(KEYS[1], ARGV[2])"

CHECK_SCRIPT = _BEHIND + "return behind(KEYS[1], ARGV[4]) or {'OK'}"


_CLAIM_FIRST = """
local refused = claim(KEYS[1], ARGV[1], ARGV[2], ARGV[#ARGV - 1], ARGV[#ARGV])
if refused then return refused end
"""


def slot_chunk_script(command: str, on_null: str = "remove") -> str:
    """The script that claims a slot's entry and applies one chunk there."""
    return _CLAIM + _CLAIM_FIRST + chunk_script(command, on_null)


def slot_aside_script(command: str, on_null: str = "remove") -> str:
    """The same of a writer that puts refused rows aside, into a stream of the slot's."""
    taken = "table.remove(ARGV)\ntable.remove(ARGV)\n"
    return _CLAIM + _CLAIM_FIRST + taken + aside_script(command, on_null)
