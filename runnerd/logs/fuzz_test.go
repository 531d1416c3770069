package logs

import (
	"encoding/binary"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"colloid.net/runnerd/shim"
)

// FuzzCopy holds the reader of an instance's files, which the instance fills: all of its output comes out, whatever the times
// beside it say, and a tail is the end of it.
func FuzzCopy(f *testing.F) {
	f.Add([]byte("a\nb\n"), []byte("c\nd"), []byte{0, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0, 9}, uint32(3), int64(5))
	f.Add([]byte{}, []byte("\n\n\xff"), []byte(strings.Repeat("\xff", 48)), uint32(1), int64(0))
	f.Add([]byte("no end"), []byte("x"), []byte("cut"), uint32(0), int64(1<<62))
	f.Fuzz(func(t *testing.T, old, current, stamps []byte, tail uint32, since int64) {
		directory := t.TempDir()
		write(t, directory, shim.FileLogOld, string(old))
		write(t, directory, shim.FileLog, string(current))
		info, err := os.Stat(filepath.Join(directory, shim.FileLog))
		if err != nil {
			t.Fatal(err)
		}
		times := append(binary.BigEndian.AppendUint64([]byte("cltimes1"), inodeOf(info)), stamps...)
		write(t, directory, shim.FileTimes, string(times))
		all := strings.Join(kept(t, directory, Options{}).lines, "\n")
		if want := strings.TrimSuffix(string(old)+string(current), "\n"); all != want && all+"\n" != want {
			t.Fatalf("%q came out as %q", want, all)
		}
		if recent := kept(t, directory, Options{TailLines: tail % 64, SinceUnixMilliseconds: since}); len(recent.lines) >
			strings.Count(all, "\n")+2 {
			t.Fatalf("%q has become %q", all, recent.lines)
		}
		some := kept(t, directory, Options{TailLines: tail % 64})
		if end := strings.Join(some.lines, "\n"); !strings.HasSuffix(all, end) || tail%64 > 0 && len(some.lines) > int(tail%64) {
			t.Fatalf("the last %d of %q are %q", tail%64, all, end)
		}
	})
}
