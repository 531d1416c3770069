package launcher

import (
	"os/user"
	"strconv"
	"testing"
)

// nobody stands for any account that is not root.
const nobody = 65534

// Without a user colloid, meshd shares its user id with nobody else on the host: what runs as nobody, like
// workloads, cannot read the cluster key (F12, F132).
func TestF132_MeshdNeverRunsAsNobody(t *testing.T) {
	id, err := spareIdentity()
	if err != nil {
		t.Fatal(err)
	}
	if id.User == nobody || id.User == 0 || id.User < spareFirst || id.User >= spareFirst+spareCount {
		t.Errorf("identity %+v", id)
	}
	if account, err := user.LookupId(strconv.Itoa(int(id.User))); err == nil {
		t.Errorf("user id %d belongs to %s", id.User, account.Username)
	}
	if again, err := spareIdentity(); err != nil || again != id {
		t.Errorf("another identity at the next start: %+v, %v", again, err)
	}
}
