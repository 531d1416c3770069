package cli

import (
	"os"
	"runtime"
	"testing"

	"colloid.net/internal/launcher"
	"colloid.net/ipc/uds"
	"golang.org/x/sys/unix"
)

// The launcher prepares the socket's group and the daemon checks it: both must mean the same one (F135).
func TestF135_OneNameForTheReadingGroup(t *testing.T) {
	if launcher.SocketGroup != uds.GroupRead {
		t.Errorf("launcher %q, socket %q", launcher.SocketGroup, uds.GroupRead)
	}
}

// A socket that the caller may not use is no daemon that does not answer: the groups are named (F135).
func TestF135_AForbiddenSocketNamesTheGroups(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root, to become somebody else")
	}
	d := newFake(t)
	if err := os.Chmod(d.path, 0o600); err != nil {
		t.Fatal(err)
	}
	done := make(chan result)
	go func() {
		runtime.LockOSThread() // and never unlocked: the thread ends with the goroutine
		const nobody = 65534
		if _, _, errno := unix.RawSyscall(unix.SYS_SETRESUID, nobody, nobody, nobody); errno != 0 {
			done <- result{errors: errno.Error()}
			return
		}
		done <- runCommand("", map[string]string{"COLLOID_SOCKET": d.path}, "status")
	}()
	(<-done).expectError(t, ExitError, "permission denied", "group "+uds.GroupRead, uds.GroupWrite)
}
