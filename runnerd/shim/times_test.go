package shim

import (
	"os"
	"testing"
	"time"
)

// However slowly and long an instance writes, what is kept of its times is bounded, and they go on across
// rotations and a new shim (F147).
func TestF147_TimesAreBounded(t *testing.T) {
	directory := t.TempDir()
	log, err := openLog(directory, 0)
	if err != nil {
		t.Fatal(err)
	}
	now := time.UnixMilli(1_800_000_000_000)
	began := now
	const writes = 300_000 // two bytes each, each with a stamp: 4.8 MB of them
	for i := range writes {
		now = now.Add(StampInterval)
		log.append(now, []byte("x\n"))
		if i == writes/2 { // another shim
			log.file.Close()
			log.times.close()
			if log, err = openLog(directory, 0); err != nil {
				t.Fatal(err)
			}
		}
	}
	for _, name := range []string{FileTimes, FileTimesOld} {
		info, err := os.Stat(directory + "/" + name)
		if err != nil || info.Size() > TimesFileMax || info.Size()%StampSize != 0 {
			t.Fatalf("%s: %v, %d bytes", name, err, info.Size())
		}
	}
	times := OpenTimes(directory, log.file)
	if times == nil {
		t.Fatal("no times of the open log")
	}
	last, _ := times.At(log.size - 1)
	first, _ := times.At(0)
	if last != now.UnixMilli() || first <= began.UnixMilli() || first >= last {
		t.Fatalf("from %d to %d, now %d", first, last, now.UnixMilli())
	}
	if offset := times.Since(last, log.size); offset != log.size-2 {
		t.Fatalf("since the last at %d of %d", offset, log.size)
	}
	if at, _ := (*Times)(nil).At(5); at != 0 {
		t.Fatal(at)
	}
}
