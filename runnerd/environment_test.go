package runnerd_test

import (
	"bytes"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"colloid.net/ipc/message"
	"colloid.net/runnerd/runnerdtest"
	"colloid.net/workload"
)

// supplied is a Start with secrets and files.
func supplied(t *testing.T, spec *workload.Spec, change func(*message.Start)) *message.Command {
	t.Helper()
	m := runnerdtest.StartOf(t, "spread.secret", 0, spec)
	m.Environment = []string{"PASSWORD=geheimnis-4711"}
	m.Files = []*message.File{{Path: "/etc/app/key", Mode: 0o440, Content: []byte("inhalt")}}
	if change != nil {
		change(m)
	}
	return &message.Command{Body: &message.Command_Start{Start: m}}
}

func secretSpec(h *host, words ...string) *workload.Spec {
	spec := runnerdtest.Spec(h.binary, words...)
	spec.EnvironmentDigest = [32]byte{1}
	return spec
}

// onDisk reports whether any file of the host's state holds a text.
func (h *host) onDisk(text string) (found string) {
	_ = filepath.WalkDir(h.directory, func(path string, entry fs.DirEntry, err error) error {
		if err == nil && entry.Type().IsRegular() && !strings.HasSuffix(path, "/scratch/shown") {
			if raw, err := os.ReadFile(path); err == nil && bytes.Contains(raw, []byte(text)) {
				found = path
			}
		}
		return nil
	})
	return found
}

// F83: a process gets its secrets as variables and its files below $COLLOID_FILES; the secrets are in no file of
// runnerd.
func TestF83_ProcessGetsSecretsAndFiles(t *testing.T) {
	h := newHost(t)
	client := runnerdtest.Attach(t, h.open())
	command := supplied(t, secretSpec(h, "show"), nil)
	client.Send(command)
	id := runnerdtest.IDOf(command.GetStart().Id)
	if i := client.Await(id, ready); i.NeedsEnvironment {
		t.Error("asks for an environment that it has")
	}
	var shown []byte
	for deadline := time.Now().Add(runnerdtest.Patience); shown == nil && time.Now().Before(deadline); {
		shown, _ = os.ReadFile(h.instanceFile(id, "scratch/shown"))
		time.Sleep(10 * time.Millisecond)
	}
	directory := h.instanceFile(id, "files")
	for _, want := range []string{"env PASSWORD=geheimnis-4711\n", "env COLLOID_FILES=" + directory + "\n"} {
		if !strings.Contains(string(shown), want) {
			t.Errorf("%q is not in\n%s", want, shown)
		}
	}
	path := filepath.Join(directory, "etc/app/key")
	info, err := os.Stat(path)
	if err != nil || info.Mode().Perm() != 0o440 {
		t.Fatalf("%v, %v", info, err)
	}
	if raw, _ := os.ReadFile(path); string(raw) != "inhalt" {
		t.Errorf("file holds %q", raw)
	}
	if path := h.onDisk("geheimnis-4711"); path != "" {
		t.Errorf("the secret is in %s", path)
	}
	client.Stop(id, 0)
	client.AwaitGone(id)
}

// F83: a runnerd that was restarted asks for what it forgot, and starts nothing without it.
func TestF83_RestartedRunnerdAsksForTheSecrets(t *testing.T) {
	h := newHost(t)
	s := h.open()
	client := runnerdtest.Attach(t, s)
	command := supplied(t, secretSpec(h, "sleep"), nil)
	client.Send(command)
	id := runnerdtest.IDOf(command.GetStart().Id)
	client.Await(id, ready)
	s.Close()

	client = runnerdtest.Attach(t, h.open())
	i := client.Await(id, ready)
	if !i.NeedsEnvironment {
		t.Error("does not ask for the environment")
	}
	for _, p := range h.processes() {
		_ = p.Signal(unix.SIGKILL)
	}
	client.Until("the wait for the environment", func() bool {
		i := client.Locked(id)
		return i.GetState() == backoff && strings.Contains(i.GetReason(), "waits for its secrets")
	})
	client.Send(supplied(t, secretSpec(h, "sleep"), nil))
	if i = client.Await(id, ready); i.NeedsEnvironment || i.Restarts != 1 {
		t.Errorf("%+v", i)
	}
}

func TestF83_HostileEnvironmentsAreRefused(t *testing.T) {
	h := newHost(t)
	client := runnerdtest.Attach(t, h.open())
	plain := runnerdtest.Spec(h.binary, "sleep")
	for name, command := range map[string]*message.Command{
		"none":                           supplied(t, secretSpec(h, "sleep"), func(m *message.Start) { m.Environment, m.Files = nil, nil }),
		"not named by the specification": supplied(t, plain, nil),
		"loader": supplied(t, secretSpec(h, "sleep", "1"), func(m *message.Start) {
			m.Environment = []string{"LD_PRELOAD=/tmp/geheimnis-0815"}
		}),
		"upwards":     supplied(t, secretSpec(h, "sleep", "2"), func(m *message.Start) { m.Files[0].Path = "/../../x" }),
		"set-user-id": supplied(t, secretSpec(h, "sleep", "3"), func(m *message.Start) { m.Files[0].Mode = 0o4755 }),
		"no variable": supplied(t, secretSpec(h, "sleep", "4"), func(m *message.Start) {
			m.Environment = []string{"geheimnis-0815"}
		}),
		"too large": supplied(t, secretSpec(h, "sleep", "5"), func(m *message.Start) {
			m.Files[0].Content = make([]byte, workload.EnvironmentSizeMax)
		}),
	} {
		client.Send(command)
		i := client.Await(runnerdtest.IDOf(command.GetStart().Id), denied)
		if strings.Contains(i.Reason, "geheimnis") {
			t.Errorf("%s: the reason shows a value: %s", name, i.Reason)
		}
	}
	if n := len(h.processes()); n != 0 {
		t.Errorf("%d processes run", n)
	}
}

// An instance that was ready and fails its check for long is ended and started again; one that recovers in time
// is not.
func TestF158_HangingInstanceIsRestarted(t *testing.T) {
	h := newHost(t)
	h.timing.Liveness = 600 * time.Millisecond
	client := runnerdtest.Attach(t, h.open())
	port := freePort(t)
	spec := runnerdtest.Spec(h.binary, "listen")
	spec.Restart = workload.RestartOnFailure // what ends because it hung has failed, whatever its exit code
	spec.Ports = []workload.Port{{Host: port, Container: port}}
	spec.Health = workload.Health{Kind: workload.HealthHTTP, Port: port, Path: "/", IntervalMillisecond: 100,
		FailuresMax: 1}
	id := client.Start("spread.http", 0, spec)
	client.Await(id, ready)
	sick := h.instanceFile(id, "scratch/sick")
	write := func() {
		if err := os.WriteFile(sick, nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write()
	client.Await(id, unready)
	os.Remove(sick)
	if i := client.Await(id, ready); i.Restarts != 0 {
		t.Fatalf("restarted although it recovered: %v", i)
	}
	write()
	client.Until("a restart", func() bool {
		i := client.Locked(id)
		return i.GetRestarts() == 1 && strings.Contains(i.GetReason(), "health check failed for 600ms")
	})
	os.Remove(sick)
	client.Await(id, ready)
}
