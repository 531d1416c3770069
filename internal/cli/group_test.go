package cli

import (
	"testing"

	"colloid.net/internal/launcher"
	"colloid.net/ipc/uds"
)

// The launcher prepares the socket's group and the daemon checks it: both must mean the same one (F135).
func TestF135_OneNameForTheReadingGroup(t *testing.T) {
	if launcher.SocketGroup != uds.GroupRead {
		t.Errorf("launcher %q, socket %q", launcher.SocketGroup, uds.GroupRead)
	}
}
