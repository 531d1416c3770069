package control

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"colloid.net/ipc/uds"
)

// reachable waits until a daemon answers at path.
func reachable(t *testing.T, path string) {
	t.Helper()
	var err error
	for limit := time.Now().Add(5 * time.Second); time.Now().Before(limit); time.Sleep(2 * time.Millisecond) {
		var client *uds.Client
		if client, err = uds.Dial(path); err != nil {
			continue
		}
		_, err = client.Do(uds.CodeHello, []byte("x"))
		client.Close()
		if err == nil {
			return
		}
	}
	t.Fatalf("%s: %v", path, err)
}

// A socket that is deleted, replaced or whose directory is deleted is there again, with the same permissions;
// a client that was connected before goes on (F135).
func TestF135_ADeletedSocketComesBack(t *testing.T) {
	for how, attack := range map[string]func(path string) error{
		"deleted":           os.Remove,
		"moved":             func(path string) error { return os.Rename(path, path+".away") },
		"directory deleted": func(path string) error { return os.RemoveAll(filepath.Dir(path)) },
		"replaced by a dead socket": func(path string) error {
			os.Remove(path)
			fd, err := syscall.Socket(syscall.AF_UNIX, syscall.SOCK_STREAM, 0)
			defer syscall.Close(fd)
			return errors.Join(err, syscall.Bind(fd, &syscall.SockaddrUnix{Name: path}))
		},
	} {
		t.Run(how, func(t *testing.T) {
			var repairs atomic.Int32
			path, _ := serve(t, func(o *Options) {
				o.watchInterval = 5 * time.Millisecond
				o.Trouble = func(_, _ string, repaired bool) {
					if repaired {
						repairs.Add(1)
					}
				}
			})
			before := dial(t, path)
			if err := attack(path); err != nil {
				t.Fatal(err)
			}
			reachable(t, path)
			if info, err := os.Lstat(path); err != nil || info.Mode() != os.ModeSocket|0o660 {
				t.Errorf("the new socket has mode %v, %v", info.Mode(), err)
			}
			if entries, _ := os.ReadDir(filepath.Dir(path)); len(entries) != 1 && how != "moved" {
				t.Errorf("left behind: %v", entries)
			}
			if _, err := before.Do(uds.CodeHello, []byte("x")); err != nil {
				t.Errorf("an old connection: %v", err)
			}
			for limit := time.Now().Add(5 * time.Second); repairs.Load() != 1; time.Sleep(time.Millisecond) {
				if time.Now().After(limit) {
					t.Fatalf("said %d times", repairs.Load())
				}
			}
		})
	}
}

// What somebody else has put in the socket's place is neither used nor removed; it is said once.
func TestF135_ASquatterIsNotTakenOver(t *testing.T) {
	var said atomic.Value
	path, _ := serve(t, func(o *Options) {
		o.watchInterval = 5 * time.Millisecond
		o.Trouble = func(text, _ string, repaired bool) { said.Store(text) }
	})
	if err := errors.Join(os.Remove(path), os.WriteFile(path, []byte("mine"), 0o600)); err != nil {
		// The server may have listened again between the two.
		t.Skip(err)
	}
	for limit := time.Now().Add(5 * time.Second); said.Load() == nil; time.Sleep(time.Millisecond) {
		if time.Now().After(limit) {
			t.Fatal("nobody was told")
		}
	}
	if text := said.Load().(string); !strings.Contains(text, "is not a socket: move it away") {
		t.Errorf("said %q", text)
	}
	if content, err := os.ReadFile(path); err != nil || string(content) != "mine" {
		t.Errorf("the file is %q, %v", content, err)
	}
	os.Remove(path)
	reachable(t, path)
}
