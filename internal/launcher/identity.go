package launcher

import (
	"errors"
	"fmt"
	"math"
	"os/user"
	"strconv"
	"strings"
)

// SocketGroup may read the command socket (F135); it is uds.GroupRead, which the launcher does not import.
const SocketGroup = "colloid"

// DefaultUser is the account under which meshd runs when the launcher is root.
const DefaultUser = "colloid"

// Without a user colloid, meshd gets a number that no account of the host has, the first free one of a
// few; the same at the next start. It must not be nobody: other programs run as nobody too, workloads
// among them, and could read the cluster key or send signals to meshd.
const (
	spareFirst = 61184 // the range that service managers hand out for a run
	spareCount = 16
)

// Identity is the user and group a child runs as. There is at most one supplementary group.
type Identity struct {
	User, Group uint32
	Name        string // for messages
	// SocketGroup is the group that may read through the command socket, 0 if the host has none. Only a
	// member can give the socket to it (F135); no other right comes with it.
	SocketGroup uint32
}

// lookupSocketGroup finds the group that may use the command socket.
func lookupSocketGroup() uint32 {
	group, err := user.LookupGroup(SocketGroup)
	if err != nil {
		return 0
	}
	number, err := parseID(group.Gid)
	if err != nil {
		return 0
	}
	return number
}

// LookupIdentity resolves who meshd runs as when the launcher is root. Text is a name, a numeric id
// or UID:GID; empty means the user colloid if it exists, else a number of no account.
func LookupIdentity(text string) (Identity, error) {
	id, err := lookupIdentity(text)
	id.SocketGroup = lookupSocketGroup()
	return id, err
}

func lookupIdentity(text string) (Identity, error) {
	if text == "" {
		id, err := namedIdentity(DefaultUser)
		var unknown user.UnknownUserError
		if errors.As(err, &unknown) {
			return spareIdentity()
		}
		return id, err
	}
	uid, gid, pair := strings.Cut(text, ":")
	number, err := parseID(uid)
	if err != nil {
		if pair {
			return Identity{}, fmt.Errorf("--user %q: write a name, a number or UID:GID", text)
		}
		return namedIdentity(text)
	}
	id := Identity{User: number, Group: number, Name: text}
	if pair {
		if id.Group, err = parseID(gid); err != nil {
			return Identity{}, fmt.Errorf("--user %q: group id: %w", text, err)
		}
		return id, nil
	}
	if account, err := user.LookupId(uid); err == nil {
		return accountIdentity(account)
	}
	return id, nil
}

// spareIdentity finds a number that is neither a user nor a group of this host.
func spareIdentity() (Identity, error) {
	for number := spareFirst; number < spareFirst+spareCount; number++ {
		text := strconv.Itoa(number)
		_, errUser := user.LookupId(text)
		_, errGroup := user.LookupGroupId(text)
		if errUser != nil && errGroup != nil {
			return Identity{User: uint32(number), Group: uint32(number), Name: text}, nil
		}
	}
	return Identity{}, fmt.Errorf("there is no user %s and no spare user id from %d on: create the user with `useradd --system %s`",
		DefaultUser, spareFirst, DefaultUser)
}

func namedIdentity(name string) (Identity, error) {
	account, err := user.Lookup(name)
	if err != nil {
		return Identity{}, fmt.Errorf("user %q: %w", name, err)
	}
	return accountIdentity(account)
}

func accountIdentity(account *user.User) (Identity, error) {
	uid, errUser := parseID(account.Uid)
	gid, errGroup := parseID(account.Gid)
	if err := errors.Join(errUser, errGroup); err != nil {
		return Identity{}, fmt.Errorf("user %q: %w", account.Username, err)
	}
	return Identity{User: uid, Group: gid, Name: account.Username}, nil
}

// parseID accepts decimal ids below the reserved value 2^32-1, which means "unchanged" to the kernel.
func parseID(text string) (uint32, error) {
	n, err := strconv.ParseUint(text, 10, 32)
	if err != nil || n == math.MaxUint32 {
		return 0, fmt.Errorf("%q is not a user or group id", text)
	}
	return uint32(n), nil
}
