package runnerd_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"colloid.net/runnerd/runnerdtest"
)

// The disk of the state directory is full: the instance goes on and is started again, a person is told, and told
// that it is over once there is room (F157).
func TestF157_AFullDiskIsAnAlarmOfRunnerd(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root: mounts a small file system")
	}
	h := newHost(t)
	if err := os.MkdirAll(h.directory, 0o711); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mount("colloid-test", h.directory, "tmpfs", 0, "size=4m,mode=0711"); err != nil {
		t.Skipf("cannot mount: %v", err)
	}
	t.Cleanup(func() { _ = exec.Command("umount", "-l", h.directory).Run() })
	d := h.daemon(0)
	d.Run(t)
	client := d.Connect()
	id := client.Start("spread.web", 0, runnerdtest.Spec(h.binary, "tick"))
	first := processOf(client.Await(id, ready))
	filler := filepath.Join(h.directory, "filler")
	if err := fill(filler); err != nil {
		t.Fatal(err)
	}
	_ = first.Signal(unix.SIGKILL)
	client.Until("the alarm", func() bool { return heardAlarm(client, "no space left on device") })
	if err := os.Remove(filler); err != nil {
		t.Fatal(err)
	}
	client.Until("the end of the alarm", func() bool { return !heardAlarm(client, "no space left on device") })
	client.Until("a second run", func() bool { return client.Locked(id).GetState() == ready })
	d.Kill()
	d.Run(t)
	client = d.Connect()
	if again := processOf(client.Await(id, ready)); again == first || len(h.processes()) != 1 {
		t.Fatalf("%v became %v, %d processes", first, again, len(h.processes()))
	}
}

// fill writes to a file until nothing more fits.
func fill(path string) error {
	file, err := os.Create(path)
	if err != nil {
		return err
	}
	defer file.Close()
	for chunk := 1 << 16; chunk > 0; {
		if _, err := file.Write(make([]byte, chunk)); err != nil {
			chunk /= 2
		}
	}
	return nil
}
