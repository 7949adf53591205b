package redis

import (
	"context"
	"crypto/sha1"
	"encoding/hex"

	"github.com/redis/go-redis/v9"
)

// The scripts state the decisions of package backend in Lua for the moves that
// must take one round trip. KEYS[1] is the record, KEYS[2] the body's own key; no
// script touches another key, so each runs on one slot of a Cluster. ARGV[1] is the
// encoded identity. Times are the server's, read in the script.
//
// Every script may arrive twice, because the client sends a command again whose
// reply it did not get: a second copy meets its own token and answers as the first.
//
// They answer an integer (0 done, 1 lost) or a table whose first element says what
// follows: answerRecord is a record as it stands with the server's time and the
// key's expiry, answerUnreadable a value for Go to name the fault of.
const (
	answerDone = 0
	answerLost = 1

	answerUnreadable = 2
	answerRecord     = 3
)

// loadLua reads the record, checks that it can be trusted and makes the times of a
// native reservation absolute. Afterwards state is 0 for an absent, forgotten or
// expired record.
const loadLua = `
local v = redis.call('GET', KEYS[1])
local t = redis.call('TIME')
local now = t[1] * 1000000 + t[2]
local state, flags, reserved, at, replay, known, idlen, extra, fplen, fresh = 0
if v then
  if #v < 77 then return {2, v} end
  local version, bindsum, bodysum
  version, state, flags = string.byte(v, 1, 3)
  if version ~= 1 or state > 5 then return {2, v} end
  reserved, at, replay, known, bindsum, bodysum, idlen, extra, fplen = struct.unpack('<i8i8i8i8I4I4I2I2B', v, 33)
  if string.sub(v, 78, 77 + idlen) ~= ARGV[1] or #v < 77 + idlen + fplen + extra then return {2, v} end
  if bit.band(flags, 2) ~= 0 then
    known = redis.call('PEXPIRETIME', KEYS[1]) * 1000
    if known < 0 then return {2, v} end
    at = known + at
    reserved = known + reserved
    flags = flags - 2
    v = string.sub(v, 1, 8) .. struct.pack('<I8', reserved) .. string.sub(v, 17)
  end
  if known ~= 0 and now >= known and state ~= 4 and not (state == 1 and at == 0) then state = 0 end
end
local function put(value)
  if known == 0 or state == 1 and at == 0 then
    redis.call('SET', KEYS[1], value)
  else
    redis.call('SET', KEYS[1], value, 'PXAT', math.max(math.floor(known / 1000), math.floor(now / 1000) + 1))
  end
end
`

// completeLua is CompleteRequest.Apply. ARGV: identity, owner, state, replay and
// dedup window, body in the record, its checksum, body for a key of its own, which gets
// the fence in front. Done answers the record without identity and body, which the caller has.
const completeLua = loadLua + `
if state == 0 or state == 5 or string.sub(v, 17, 32) ~= ARGV[2] then return 1 end
local to = tonumber(ARGV[3])
if state ~= 1 and (state ~= 4 or to == 4) then return {3, v, now, redis.call('PEXPIRETIME', KEYS[1])} end
local keep = 77 + idlen + fplen
flags = flags - bit.band(flags, 4)
if to == 4 then
  known = 0
  replay = 0
else
  local evidence = 0
  if bit.band(flags, 16) ~= 0 then evidence = 2 + struct.unpack('<I2', v, keep + 1) end
  extra = evidence
  flags = flags - bit.band(flags, 8)
  at = now
  replay = now + ARGV[4]
  known = now + ARGV[5]
  if ARGV[8] ~= '' then
    redis.call('SET', KEYS[2], string.sub(v, 9, 16) .. ARGV[8], 'PXAT', math.max(math.floor(replay / 1000), math.floor(now / 1000) + 1))
    flags = flags + 4
  end
end
state = to
local header = string.char(1, to, flags) .. string.sub(v, 4, 32) ..
  struct.pack('<i8i8i8i8', reserved, at, replay, known) .. string.sub(v, 65, 68) .. ARGV[7] ..
  struct.pack('<I2I2B', idlen, extra, fplen)
put(header .. string.sub(v, 78, keep + extra) .. ARGV[6])
return header .. string.sub(v, 78 + idlen, keep + extra)
`

// finishLua is the completion of an attempt of which the sender knows the whole value:
// it compares and sets, and answers the key's new expiry, or -1 if the record is not any
// more as it was reserved; then completeLua finds out why. ARGV: value, next value, dedup
// window in milliseconds.
const finishLua = `
if redis.call('GET', KEYS[1]) ~= ARGV[1] then return -1 end
redis.call('SET', KEYS[1], ARGV[2], 'PX', ARGV[3])
return redis.call('PEXPIRETIME', KEYS[1])
`

// releaseLua is Ref.ApplyRelease. ARGV: identity, owner, checksum of the identity
// alone, how long an open record is kept.
const releaseLua = loadLua + `
if state == 0 or string.sub(v, 17, 32) ~= ARGV[2] then return 0 end
if state == 4 then return 1 end
if state ~= 1 then return 0 end
state = 5
known = now + ARGV[4]
put(string.char(1, 5, flags - bit.band(flags, 4)) .. string.sub(v, 4, 32) .. struct.pack('<i8i8i8i8', reserved, 0, 0, known) ..
  ARGV[3] .. '\0\0\0\0' .. struct.pack('<I2I2B', idlen, extra, 0) ..
  string.sub(v, 78, 77 + idlen) .. string.sub(v, 78 + idlen + fplen, 77 + idlen + fplen + extra))
return 0
`

// renewLua is Ref.ApplyRenew. ARGV: identity, owner, length of the lease.
const renewLua = loadLua + `
if state ~= 1 or string.sub(v, 17, 32) ~= ARGV[2] then return 1 end
local till = now + ARGV[3]
if at == 0 or till <= at then return 0 end
if known ~= 0 then known = till + known - at end
at = till
put(string.char(1, 1, flags) .. string.sub(v, 4, 32) .. struct.pack('<i8i8i8i8', reserved, at, replay, known) .. string.sub(v, 65))
return 0
`

// reserveLua creates a record or answers the one that is there, for the reserves
// that no native SET can make: without an expiry, or over a grave, whose fence the
// new one must exceed. ARGV: identity, value without fence and times, lease,
// abandoned window or 0. The first element of its answer is 0 for created.
const reserveLua = `
local v = redis.call('GET', KEYS[1])
local t = redis.call('TIME')
local now = t[1] * 1000000 + t[2]
local fence = now
if v then
  if string.sub(v, 1, 2) ~= '\1\0' or #v < 77 then return {3, v, now, redis.call('PEXPIRETIME', KEYS[1])} end
  fence = math.max(now, struct.unpack('<I8', v, 9) + 1)
end
local lease = now + ARGV[3]
local known = 0
if ARGV[4] ~= '0' then known = lease + ARGV[4] end
local n = ARGV[2]
n = string.sub(n, 1, 8) .. struct.pack('<I8', fence) .. string.sub(n, 17, 32) .. struct.pack('<i8i8i8i8', now, lease, 0, known) .. string.sub(n, 65)
if known == 0 then
  redis.call('SET', KEYS[1], n)
else
  redis.call('SET', KEYS[1], n, 'PXAT', math.floor(known / 1000))
end
return {0, n, now, -1}
`

// lookLua reads a record with the server's time, also one whose key has no expiry
// to tell the time by, and always from the master.
const lookLua = `
local v = redis.call('GET', KEYS[1])
local t = redis.call('TIME')
return {3, v, t[1] * 1000000 + t[2], redis.call('PEXPIRETIME', KEYS[1])}
`

// swapLua puts a value that Go has decided on in the place of the very one that it
// has seen: same head, same length, same expiry, which is where a native
// reservation keeps its times. What the decision counted from its time, it is told
// in a mask, and moves along to the time of the swap. ARGV: identity, old head, old
// length, old expiry, new value, time of the decision, mask, value of the body's
// own key. It answers by how much the times have moved, or -1: the record has
// changed, decide again.
const swapLua = `
local v = redis.call('GET', KEYS[1])
if not v or #v ~= tonumber(ARGV[3]) or string.sub(v, 1, #ARGV[2]) ~= ARGV[2] or
  redis.call('PEXPIRETIME', KEYS[1]) ~= tonumber(ARGV[4]) then return -1 end
local t = redis.call('TIME')
local now = t[1] * 1000000 + t[2]
local moved = math.max(now - ARGV[6], 0)
local times = {struct.unpack('<i8i8i8i8', ARGV[5], 33)}
local mask = tonumber(ARGV[7])
for i = 1, 4 do
  if bit.band(mask, bit.lshift(1, i - 1)) ~= 0 then times[i] = times[i] + moved end
end
local n = string.sub(ARGV[5], 1, 32) .. struct.pack('<i8i8i8i8', times[1], times[2], times[3], times[4]) .. string.sub(ARGV[5], 65)
local soonest = math.floor(now / 1000) + 1
if ARGV[8] ~= '' then
  redis.call('SET', KEYS[2], ARGV[8], 'PXAT', math.max(math.floor(times[3] / 1000), soonest))
else
  redis.call('DEL', KEYS[2])
end
local state = string.byte(n, 2)
if times[4] == 0 or state == 4 or state == 1 and times[2] == 0 then
  redis.call('SET', KEYS[1], n)
else
  redis.call('SET', KEYS[1], n, 'PXAT', math.max(math.floor(times[4] / 1000), soonest))
end
return moved
`

// script is a text and its digest, by which a server that has seen it knows it.
type script struct{ text, sha string }

// scripts are all scripts of a store.
type scripts struct{ finish, complete, release, renew, reserve, look, swap script }

func newScripts() scripts {
	load := func(text string) script {
		sum := sha1.Sum([]byte(text))
		return script{text, hex.EncodeToString(sum[:])}
	}
	return scripts{
		finish: load(finishLua), complete: load(completeLua), release: load(releaseLua), renew: load(renewLua),
		reserve: load(reserveLua), look: load(lookLua), swap: load(swapLua),
	}
}

// eval runs a script on keys. A server that does not know the digest has not run
// anything, so the text is sent then; that works in a pipeline too, where a client
// cannot do it by itself.
func (s *Store) eval(ctx context.Context, sc *script, keys []string, args ...any) (any, error) {
	reply, _, err := s.script(ctx, sc, false, keys, args)
	return reply, err
}

// evalWrite is eval for a script that writes. short says that the write, if the
// reply tells of one, has too few acknowledgements.
func (s *Store) evalWrite(ctx context.Context, sc *script, keys []string, args ...any) (reply any, short, err error) {
	return s.script(ctx, sc, true, keys, args)
}

func (s *Store) script(ctx context.Context, sc *script, acked bool, keys []string, args []any) (reply any, short, err error) {
	cmd := evalCmd(ctx, "evalsha", sc.sha, keys, args)
	c := &call{key: keys[0], cmds: []redis.Cmder{cmd}, acked: acked}
	if err := s.run.do(ctx, c); err != nil {
		return nil, nil, err
	}
	if err := cmd.Err(); err != nil && redis.HasErrorPrefix(err, "NOSCRIPT") {
		cmd = evalCmd(ctx, "eval", sc.text, keys, args)
		c = &call{key: keys[0], cmds: []redis.Cmder{cmd}, acked: acked}
		if err := s.run.do(ctx, c); err != nil {
			return nil, nil, err
		}
	}
	reply, err = cmd.Result()
	return reply, c.short, err
}

func evalCmd(ctx context.Context, name, which string, keys []string, args []any) *redis.Cmd {
	all := make([]any, 0, 3+len(keys)+len(args))
	all = append(all, name, which, len(keys))
	for _, k := range keys {
		all = append(all, k)
	}
	cmd := redis.NewCmd(ctx, append(all, args...)...)
	cmd.SetFirstKeyPos(3)
	return cmd
}
