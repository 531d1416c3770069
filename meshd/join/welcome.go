package join

import (
	"colloid.net/meshd/seal"
	"colloid.net/meshd/state"
	"colloid.net/meshd/wire"
)

// Texts of Welcome.Refused that this package itself gives. A seed may refuse for other reasons.
const (
	RefusedLocked   = "the cluster is locked: use HOST#KEY, the key is shown by colloid lock"
	RefusedKey      = "the key does not fit this cluster: compare it with the one shown by colloid lock"
	RefusedTooMany  = "too many joins at the moment: try again in a few seconds"
	RefusedVersion  = "the other cell joins by another version of the protocol: upgrade the older one"
	refusalUnknown  = "the other cell refuses for a reason this version does not know: upgrade this cell"
	refusedTextMax  = 160
	outcomeAccepted = 1
	outcomeCollided = 2
	outcomeRefused  = 3
)

// Reasons of refusals in the clear, as they travel.
const (
	reasonLocked  = 1
	reasonKey     = 2
	reasonTooMany = 3
	reasonVersion = 4
)

var refusals = [...]string{
	reasonLocked: RefusedLocked, reasonKey: RefusedKey,
	reasonTooMany: RefusedTooMany, reasonVersion: RefusedVersion,
}

const welcomeSizeMax = 1 + seal.KeySize + 1 + MembersMax*wire.ContactSize

// Welcome is the answer of a seed. Exactly one holds: Key is set, Collision, or Refused is not empty.
type Welcome struct {
	Key     seal.Key       // of the cluster
	Members []wire.Contact // some to begin with, at most MembersMax
	// Collision: another instance lives under the joiner's id; draw a new id and join again (F3).
	Collision bool
	// Refused says why not, one line for people.
	Refused string
	// Unproven is set by Finish on a refusal that came in the clear, which somebody on the path may
	// have forged: better wait for the answers of other seeds before giving up.
	Unproven bool
}

// appendWelcome encodes w. Members beyond MembersMax and such without a usable address are left out; a
// refusal is cut to 160 bytes of printable ASCII.
func appendWelcome(dst []byte, w Welcome) []byte {
	switch {
	case w.Refused != "":
		text := state.Printable(w.Refused, refusedTextMax)
		return append(append(dst, outcomeRefused, byte(len(text))), text...)
	case w.Collision:
		return append(dst, outcomeCollided)
	case w.Key.IsZero():
		panic("join: welcome without a key")
	}
	dst = append(dst, outcomeAccepted)
	dst = append(dst, w.Key[:]...)
	at := len(dst)
	dst = append(dst, 0)
	for _, member := range w.Members {
		if dst[at] == MembersMax {
			break
		}
		if member.Check(wire.Options{Loopback: true}) == nil {
			dst = wire.AppendContact(dst, member)
			dst[at]++
		}
	}
	return dst
}

// parseWelcome decodes what appendWelcome wrote and nothing else. Loopback members are left out
// unless asked for.
func parseWelcome(raw []byte, loopback bool) (Welcome, error) {
	if len(raw) == 0 {
		return Welcome{}, ErrMalformed
	}
	outcome, raw := raw[0], raw[1:]
	switch {
	case outcome == outcomeCollided && len(raw) == 0:
		return Welcome{Collision: true}, nil
	case outcome == outcomeRefused && len(raw) > 1 && raw[0] <= refusedTextMax && len(raw) == 1+int(raw[0]):
		text := string(raw[1:])
		if string(state.Printable(text, refusedTextMax)) != text {
			return Welcome{}, ErrMalformed
		}
		return Welcome{Refused: text}, nil
	case outcome == outcomeAccepted && len(raw) > seal.KeySize:
		return parseAccepted(raw, loopback)
	}
	return Welcome{}, ErrMalformed
}

func parseAccepted(raw []byte, loopback bool) (Welcome, error) {
	w := Welcome{Key: seal.Key(raw[:seal.KeySize])}
	count, contacts := int(raw[seal.KeySize]), raw[seal.KeySize+1:]
	if w.Key.IsZero() || count > MembersMax || len(contacts) != count*wire.ContactSize {
		return Welcome{}, ErrMalformed
	}
	w.Members = make([]wire.Contact, 0, count)
	for ; len(contacts) > 0; contacts = contacts[wire.ContactSize:] {
		member, err := wire.ParseContact(contacts[:wire.ContactSize], wire.Options{Loopback: true})
		if err != nil {
			return Welcome{}, ErrMalformed
		}
		if loopback || !member.Address.Addr().IsLoopback() {
			w.Members = append(w.Members, member)
		}
	}
	return w, nil
}
