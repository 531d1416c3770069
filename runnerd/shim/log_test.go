package shim

import (
	"bytes"
	"io"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"colloid.net/runnerd/cgroup"
	"colloid.net/runnerd/procfs"
	"colloid.net/runnerd/record"
)

func TestF147_TwoFilesBoundTheLog(t *testing.T) {
	l, err := openLog(t.TempDir(), 0)
	if err != nil {
		t.Fatal(err)
	}
	l.fileMax = 1000
	var all []byte
	for n := range 100 {
		line := bytes.Repeat([]byte{byte('a' + n%26)}, 37)
		all = append(all, line...)
		l.write(time.Now(), line)
		for _, name := range []string{FileLog, FileLogOld} {
			if info, err := os.Stat(l.path(name)); err == nil && info.Size() > l.fileMax {
				t.Fatalf("%s has %d bytes", name, info.Size())
			}
		}
	}
	old, _ := os.ReadFile(l.path(FileLogOld))
	now, _ := os.ReadFile(l.path(FileLog))
	if kept := append(old, now...); len(kept) < 1000 || !bytes.HasSuffix(all, kept) {
		t.Fatalf("kept %d bytes, not the last ones", len(kept))
	}
	l.file.Close()
	l, err = openLog(l.directory, 0) // goes on where it was
	if err != nil || l.size != int64(len(now)) {
		t.Fatal(err, l.size)
	}
}

func TestF147_RateDropsCountsAndMarks(t *testing.T) {
	l, err := openLog(t.TempDir(), 100)
	if err != nil {
		t.Fatal(err)
	}
	now := l.refilled
	if l.write(now, make([]byte, 400)) { // the burst
		t.Fatal("the burst was dropped")
	}
	for range 3 {
		if !l.write(now, make([]byte, 50)) {
			t.Fatal("over the rate and kept")
		}
	}
	now = now.Add(time.Second)
	if l.write(now, []byte("after")) {
		t.Fatal("dropped after a second")
	}
	text, _ := os.ReadFile(l.path(FileLog))
	if !strings.HasSuffix(string(text), "\n[runnerd: 150 bytes of output dropped, over 100 bytes per second]\nafter") {
		t.Fatalf("%q", text[400:])
	}
	l.saveDropped()
	l, err = openLog(l.directory, 100)
	if err != nil || l.dropped != 150 {
		t.Fatalf("%v, %d dropped", err, l.dropped)
	}
}

// TestDrainReadsOnWithAFullDisk has a log that cannot be written: output is lost, the writer is not
// held up.
func TestDrainReadsOnWithAFullDisk(t *testing.T) {
	l, err := openLog(t.TempDir(), 0)
	if err != nil {
		t.Fatal(err)
	}
	l.file.Close()
	if l.file, err = os.OpenFile("/dev/full", os.O_WRONLY, 0); err != nil {
		t.Skip(err)
	}
	l.drain(io.LimitReader(zeros{}, 1<<20))
	if l.dropped != 1<<20 {
		t.Fatalf("%d bytes counted as dropped", l.dropped)
	}
}

type zeros struct{}

func (zeros) Read(p []byte) (int, error) { return len(p), nil }

func TestConfigTravelsAsARecord(t *testing.T) {
	c := &Config{
		Directory: "/a b\n\"c\"", Watch: true, Root: procfs.Process{PID: 7, StartTicks: 1 << 60}, Session: 9,
		Cgroup: cgroup.Group{"/sys/x"}, Identity: true, UID: 1<<32 - 2, GID: 5, Arguments: []string{"", "a\x00b", "c"},
		Environment: []string{"A=\xff"}, LogRate: 3,
	}
	r, err := record.Parse(c.record().Encode())
	if err != nil {
		t.Fatal(err)
	}
	if got, err := parseConfig(r); err != nil || !reflect.DeepEqual(got, c) {
		t.Fatalf("%+v, %v", got, err)
	}
	if _, err := parseConfig(record.Record{}); err == nil {
		t.Fatal("an empty configuration was taken")
	}
}

// What is dropped at the very end, as of a crash's last words, is said as well.
func TestF147_DroppedAtTheEndIsSaid(t *testing.T) {
	directory := t.TempDir()
	read, write := io.Pipe()
	go func() {
		for range 3 {
			_, _ = io.WriteString(write, strings.Repeat("x", 3000)+"panic: the reason\n")
		}
		write.Close()
	}()
	if err := Drain(directory, 1000, read); err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(filepath.Join(directory, FileLog))
	if err != nil || !strings.Contains(string(text), "bytes of output dropped") {
		t.Fatalf("%d bytes, %v", len(text), err)
	}
}
