-- Whether the ledger's books agree: what is counted as open, and what the memories of the ids hold.  Changes nothing.
-- KEYS[1] the mark that the ledger is whole, KEYS[2] the ids with a lease, KEYS[3..] the shares of each pool
-- ARGV[1] how many ids are read at most, ARGV[2] the lanes, MessagePack, ARGV[3..] the pools, as the keys
-- Returns per pool the units that are open and those that are held; nothing where there are more ids, "lost" without the mark.
if redis.call('EXISTS', KEYS[1]) == 0 then
  return 'lost'
end
if redis.call('ZCARD', KEYS[2]) > tonumber(ARGV[1]) then
  return {}
end
local MEMORY = string.sub(KEYS[1], 1, -1 - #'ledger') .. 'request:'
local held = {}
for _, id in ipairs(redis.call('ZRANGE', KEYS[2], 0, -1)) do
  local s = redis.call('HMGET', MEMORY .. id, 'state', 'units', 'held')
  if s[1] == 'reserved' then
    local pool = cmsgpack.unpack(s[3])[1]
    held[pool] = (held[pool] or 0) + tonumber(s[2])
  end
end
local lanes, answers = cmsgpack.unpack(ARGV[2]), {}
for n = 3, #KEYS do
  local open = 0
  for _, entry in ipairs(redis.call('HMGET', KEYS[n], unpack(lanes))) do
    open = open + (entry and struct.unpack('<d', entry) or 0)
  end
  answers[#answers + 1] = string.format('%.17g', open)
  answers[#answers + 1] = string.format('%.17g', held[ARGV[n]] or 0)
end
return answers
