package logs

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"colloid.net/ipc/attach"
	"colloid.net/runnerd/shim"
)

// collector keeps what was read.
type collector struct {
	mutex   sync.Mutex
	lines   []string
	times   []int64
	present int // lines when it was said that all that is kept was passed on
	open    bool
	idle    error
}

func (c *collector) Line(l attach.Line) error {
	c.mutex.Lock()
	defer c.mutex.Unlock()
	if c.open {
		c.lines[len(c.lines)-1] += string(l.Text)
	} else {
		c.lines, c.times = append(c.lines, string(l.Text)), append(c.times, l.UnixMilliseconds)
	}
	c.open = l.Partial
	return nil
}

func (c *collector) Present() error {
	c.mutex.Lock()
	defer c.mutex.Unlock()
	c.present = len(c.lines)
	return nil
}

func (c *collector) Idle() error {
	c.mutex.Lock()
	defer c.mutex.Unlock()
	return c.idle
}

func (c *collector) wait(t *testing.T, what string, condition func() bool) {
	t.Helper()
	for deadline := time.Now().Add(20 * time.Second); ; time.Sleep(10 * time.Millisecond) {
		c.mutex.Lock()
		ok := condition()
		n := len(c.lines)
		c.mutex.Unlock()
		if ok {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("%s did not come; %d lines, the last %q", what, n, c.lines[max(0, n-3):])
		}
	}
}

func kept(t *testing.T, directory string, options Options) *collector {
	t.Helper()
	c := &collector{}
	if err := Copy(context.Background(), directory, options, c); err != nil {
		t.Fatal(err)
	}
	return c
}

func write(t *testing.T, directory, name, text string) {
	t.Helper()
	if err := os.WriteFile(filepath.Join(directory, name), []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

func TestTailCrossesFiles(t *testing.T) {
	directory := t.TempDir()
	var all []string
	var old, current strings.Builder
	for i := range 5000 { // more than a block in each
		line := fmt.Sprintf("line %d %s", i, strings.Repeat("x", i%40))
		all = append(all, line)
		if i < 3000 {
			fmt.Fprintln(&old, line)
		} else {
			fmt.Fprintln(&current, line)
		}
	}
	write(t, directory, shim.FileLogOld, old.String())
	write(t, directory, shim.FileLog, current.String()+"no end")
	all = append(all, "no end")
	for _, n := range []int{0, 1, 2, 3, 2000, 2001, 2002, 4999, 5001, 6000} {
		want := all
		if n > 0 {
			want = all[max(0, len(all)-n):]
		}
		if got := kept(t, directory, Options{TailLines: uint32(n)}); !slices.Equal(got.lines, want) {
			t.Fatalf("tail %d: %d lines from %q, expected %d from %q", n, len(got.lines), got.lines[0], len(want), want[0])
		}
	}
}

func TestLinesLongerThanAFrameAreCut(t *testing.T) {
	directory := t.TempDir()
	long := strings.Repeat("0123456789", 10_000)
	write(t, directory, shim.FileLog, "a\n"+long+"\n\nb\n")
	if got := kept(t, directory, Options{}); !slices.Equal(got.lines, []string{"a", long, "", "b"}) {
		t.Fatalf("%d lines", len(got.lines))
	}
	if got := kept(t, t.TempDir(), Options{TailLines: 3}); len(got.lines) != 0 {
		t.Fatal("an instance that wrote nothing")
	}
}

// Who opens the log in the moment between its making and that of its stamps has the times of its lines all the same.
func TestF147_StampsThatComeLaterAreFound(t *testing.T) {
	directory := t.TempDir()
	if err := os.WriteFile(filepath.Join(directory, shim.FileLog), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	c := &collector{}
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	go func() { _ = Copy(ctx, directory, Options{Follow: true}, c) }()
	time.Sleep(2 * Interval) // it has opened the log
	pipe, feed := io.Pipe()
	go func() { _ = shim.Drain(directory, 0, pipe) }()
	defer feed.Close()
	began := time.Now().UnixMilli()
	fmt.Fprintln(feed, "first")
	c.wait(t, "the line", func() bool { return len(c.lines) == 1 })
	if c.times[0] < began {
		t.Errorf("the line is of %d, it was written after %d", c.times[0], began)
	}
}

// A real shim's log writes; the reader sees each line once, in order, with its time, however it is rotated.
func TestF147_FollowCrossesRotations(t *testing.T) {
	directory := t.TempDir()
	const lines = 600_000 // some 15 MiB: one change of files
	pipe, feed := io.Pipe()
	done := make(chan error, 1)
	go func() { done <- shim.Drain(directory, 0, pipe) }()
	c := &collector{}
	ctx, cancel := context.WithCancel(context.Background())
	result := make(chan error, 1)
	go func() { result <- Copy(ctx, directory, Options{Follow: true}, c) }()
	began := time.Now().UnixMilli()
	fmt.Fprintln(feed, "first")
	c.wait(t, "the first line", func() bool { return len(c.lines) == 1 })
	fmt.Fprint(feed, "pass")
	c.wait(t, "part of a line", func() bool { return len(c.lines) == 2 && c.lines[1] == "pass" })
	fmt.Fprintln(feed, "word")
	for i := range lines / 100 {
		var block strings.Builder
		for j := range 100 {
			fmt.Fprintf(&block, "line %d with its text\n", i*100+j)
		}
		io.WriteString(feed, block.String())
		for c.count() < i*100-50_000 { // stay within what is kept
			time.Sleep(time.Millisecond)
		}
	}
	c.wait(t, "the last line", func() bool { return len(c.lines) == lines+2 })
	for i, line := range c.lines[2:] {
		if line != fmt.Sprintf("line %d with its text", i) {
			t.Fatalf("line %d is %q", i, line)
		}
	}
	if c.lines[1] != "password" {
		t.Fatalf("%q", c.lines[1])
	}
	if !slices.IsSorted(c.times) || c.times[0] < began || c.times[len(c.times)-1] > time.Now().UnixMilli() {
		t.Fatalf("times from %d to %d, began %d", c.times[0], c.times[len(c.times)-1], began)
	}
	if _, err := os.Stat(filepath.Join(directory, shim.FileLogOld)); err != nil {
		t.Fatal("it was never rotated")
	}
	feed.Close()
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	cancel()
	if err := <-result; !errors.Is(err, context.Canceled) {
		t.Fatal(err)
	}
}

func (c *collector) count() int {
	c.mutex.Lock()
	defer c.mutex.Unlock()
	return len(c.lines)
}

func TestSinceFindsTheLine(t *testing.T) {
	directory := t.TempDir()
	pipe, feed := io.Pipe()
	done := make(chan error, 1)
	go func() { done <- shim.Drain(directory, 0, pipe) }()
	var moments []int64
	for i := range 5 {
		moments = append(moments, time.Now().UnixMilli())
		fmt.Fprintf(feed, "line %d\nand more\n", i)
		time.Sleep(3 * shim.StampInterval)
	}
	feed.Close()
	<-done
	for i, moment := range moments {
		got := kept(t, directory, Options{SinceUnixMilliseconds: moment})
		if len(got.lines) != 2*(5-i) || got.lines[0] != fmt.Sprintf("line %d", i) {
			t.Fatalf("since line %d: %q", i, got.lines)
		}
	}
	if got := kept(t, directory, Options{SinceUnixMilliseconds: time.Now().UnixMilli() + 1}); len(got.lines) != 0 {
		t.Fatalf("since the future: %q", got.lines)
	}
	if got := kept(t, directory, Options{SinceUnixMilliseconds: moments[2], TailLines: 1}); len(got.lines) != 1 {
		t.Fatalf("both: %q", got.lines)
	}
}

// Times of another log, cut ones and ones that somebody filled with noise cost times, never output.
func TestTimesThatDoNotFitAreNotBelieved(t *testing.T) {
	directory := t.TempDir()
	for _, times := range []string{"", "cltimes1", "cltimes1\x00\x00\x00\x00\x00\x00\x00\x01" + strings.Repeat("\xff", 64),
		strings.Repeat("z", 99)} {
		write(t, directory, shim.FileLog, "a\nb\n")
		write(t, directory, shim.FileTimes, times)
		got := kept(t, directory, Options{})
		if !slices.Equal(got.lines, []string{"a", "b"}) || got.times[0] != 0 {
			t.Fatalf("%q %v", got.lines, got.times)
		}
	}
}

func TestFollowEndsWithTheInstance(t *testing.T) {
	directory := filepath.Join(t.TempDir(), "instance")
	if err := os.Mkdir(directory, 0o700); err != nil {
		t.Fatal(err)
	}
	write(t, directory, shim.FileLog, "last words")
	c := &collector{}
	result := make(chan error, 1)
	go func() { result <- Copy(context.Background(), directory, Options{Follow: true}, c) }()
	c.wait(t, "what is kept", func() bool { return len(c.lines) == 1 })
	if err := os.RemoveAll(directory); err != nil {
		t.Fatal(err)
	}
	if err := <-result; !errors.Is(err, ErrGone) || c.lines[0] != "last words" {
		t.Fatal(err, c.lines)
	}
}

// Never leaves out all that is kept, also where nothing says when it was written, and what comes is passed on.
func TestNeverIsAfterAllThatIsKept(t *testing.T) {
	directory := t.TempDir()
	write(t, directory, shim.FileLogOld, "old\n")
	write(t, directory, shim.FileLog, "kept\n")
	if got := kept(t, directory, Options{SinceUnixMilliseconds: Never}); len(got.lines) != 0 {
		t.Fatalf("%q", got.lines)
	}
	c := &collector{}
	ctx, stop := context.WithCancel(context.Background())
	defer stop()
	go Copy(ctx, directory, Options{SinceUnixMilliseconds: Never, Follow: true}, c)
	time.Sleep(2 * Interval)
	file, err := os.OpenFile(filepath.Join(directory, shim.FileLog), os.O_APPEND|os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	fmt.Fprintln(file, "new")
	c.wait(t, "the new line", func() bool { return slices.Equal(c.lines, []string{"new"}) })
}

// pieces keeps the time of every part of a line.
type pieces struct {
	collector
	all []int64
}

func (p *pieces) Line(l attach.Line) error {
	p.all = append(p.all, l.UnixMilliseconds)
	return p.collector.Line(l)
}

// All parts of a line have the time of its first byte, however long it took to write: who asks again from the time of
// the last part would miss what follows it.
func TestPartsOfALineHaveOneTime(t *testing.T) {
	directory := t.TempDir()
	read, write := io.Pipe()
	go func() {
		fmt.Fprintln(write, "before")
		for range 4 {
			time.Sleep(2 * shim.StampInterval)
			fmt.Fprint(write, strings.Repeat("x", attach.LineMax))
		}
		fmt.Fprintln(write)
		write.Close()
	}()
	if err := shim.Drain(directory, 0, read); err != nil {
		t.Fatal(err)
	}
	p := &pieces{}
	if err := Copy(context.Background(), directory, Options{}, p); err != nil {
		t.Fatal(err)
	}
	if len(p.lines) != 2 || len(p.all) < 5 || p.all[0] == p.all[1] || slices.Max(p.all[1:]) != p.all[1] {
		t.Fatalf("%d lines in parts of %d", len(p.lines), p.all)
	}
}
