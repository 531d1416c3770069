package control

import (
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"colloid.net/ipc/uds"
)

const clientChild = "CONTROL_TEST_SOCKET"

// F135: three users and the levels they have, told by the kernel of real processes.
func TestF135_LevelsOfRealUsers(t *testing.T) {
	if path := os.Getenv(clientChild); path != "" {
		actAsClient(path)
		return
	}
	if os.Geteuid() != 0 {
		t.Skip("only root can act as other users")
	}
	const readers, writers, stranger = 54001, 54002, 54003
	path, j := serve(t, func(o *Options) {
		o.UID, o.ReadGroup, o.WriteGroup = 54000, readers, writers
	})
	// The directory keeps strangers out before the daemon does; here the daemon is asked.
	os.Chmod(path, 0o666)
	os.Chmod(filepath.Dir(path), 0o755)
	many := []uint32{readers}
	for i := range uint32(500) {
		many = append(many, 60000+i)
	}
	for _, test := range []struct {
		name     string
		uid, gid uint32
		groups   []uint32
		want     string
	}{
		{"root", 0, 0, nil, "read yes, write yes"},
		{"daemon", 54000, stranger, nil, "read yes, write yes"},
		{"reader", stranger, readers, nil, "read yes, write no"},
		{"supplementary reader", stranger, stranger, []uint32{1, readers}, "read yes, write no"},
		{"reader in many groups", stranger, stranger, many, "read yes, write no"},
		{"writer", stranger, stranger, []uint32{writers}, "read yes, write yes"},
		{"stranger", stranger, stranger, []uint32{stranger}, "read no, write no"},
	} {
		child := exec.Command("/proc/self/exe", "-test.run=^TestF135_LevelsOfRealUsers$")
		child.Env = append(os.Environ(), clientChild+"="+path)
		child.Dir = "/"
		child.SysProcAttr = &syscall.SysProcAttr{
			Credential: &syscall.Credential{Uid: test.uid, Gid: test.gid, Groups: test.groups},
		}
		output, err := child.CombinedOutput()
		if err != nil || !strings.Contains(string(output), test.want) {
			t.Errorf("%s: want %q, got %v\n%s", test.name, test.want, err, output)
		}
	}
	for _, line := range []string{"uid 54003", `was refused set "spread.web"`, `: set "spread.web"`} {
		if !strings.Contains(j.text(), line) {
			t.Errorf("%q is not in the log:\n%s", line, j.text())
		}
	}
}

func actAsClient(path string) {
	answer := func(code uds.Code, payload []byte) string {
		c, err := uds.Dial(path)
		if err != nil {
			return err.Error()
		}
		defer c.Close()
		var refused *uds.ReplyError
		_, err = c.Do(code, payload)
		switch {
		case err == nil:
			return "yes"
		case errors.As(err, &refused) && refused.Errno == uds.ErrorPermission:
			return "no"
		}
		return err.Error()
	}
	fmt.Printf("read %s, write %s\n", answer(uds.CodeStatus, nil),
		answer(uds.CodeSet, uds.WriteRequest{Key: "spread.web"}.Append(nil)))
}

func TestPeerCredentialsOfThisProcess(t *testing.T) {
	a, b, err := pair()
	if err != nil {
		t.Fatal(err)
	}
	defer a.Close()
	defer b.Close()
	got, err := peerCredentials(a)
	if err != nil {
		t.Fatal(err)
	}
	groups, _ := os.Getgroups()
	if got.uid != uint32(os.Geteuid()) || got.gid != uint32(os.Getegid()) || got.pid != int32(os.Getpid()) ||
		len(got.groups) != len(groups) {
		t.Errorf("%+v, groups %v", got, groups)
	}
	for _, g := range groups {
		if !got.in(g) {
			t.Errorf("group %d is missing", g)
		}
	}
	if got.in(NoGroup) {
		t.Error("everybody is in no group")
	}
}

func pair() (a, b *net.UnixConn, err error) {
	fds, err := syscall.Socketpair(syscall.AF_UNIX, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, nil, err
	}
	var connections [2]*net.UnixConn
	for i, fd := range fds {
		f := os.NewFile(uintptr(fd), "pair")
		c, err := net.FileConn(f)
		f.Close()
		if err != nil {
			return nil, nil, err
		}
		connections[i] = c.(*net.UnixConn)
	}
	return connections[0], connections[1], nil
}

func TestEveryCommandHasALevel(t *testing.T) {
	for code, want := range map[uds.Code]level{
		uds.CodeHello: levelRead, uds.CodeStatus: levelRead, uds.CodeGet: levelRead, uds.CodeList: levelRead,
		uds.CodePeers: levelRead, uds.CodeExplain: levelRead, uds.CodeSet: levelWrite, uds.CodeDelete: levelWrite,
		uds.CodeResolve: levelWrite, uds.CodeConnect: levelWrite, uds.CodeLeave: levelWrite,
		uds.CodeForget: levelWrite, uds.CodeDoor: levelWrite, uds.CodeWasmInvoke: levelWrite,
		uds.CodeWasmChannel: levelWrite,
	} {
		if levels[code] != want {
			t.Errorf("command %#x: level %d, want %d", byte(code), levels[code], want)
		}
	}
	if LookupGroup("no such group") != NoGroup {
		t.Error("a group that does not exist has a number")
	}
	if LookupGroup("root") != 0 {
		t.Error("group root is not 0")
	}
}
