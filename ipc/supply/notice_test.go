package supply

import (
	"errors"
	"os"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

func TestANoticeArrivesBetweenConnections(t *testing.T) {
	ours, receiver := newPair(t)
	var heard []Notice
	receiver.Notices = func(n Notice) { heard = append(heard, n) }
	want := Notice{Program: "runnerd", Ends: 3, WindowSeconds: 600, AgoSeconds: 7, Reason: "exit status 2: panic: x", Down: true}
	if err := SendNotice(ours, want); err != nil {
		t.Fatal(err)
	}
	long := Notice{Program: "meshd", Reason: strings.Repeat("<\x1b\n", 1000)}
	if err := SendNotice(ours, long); err != nil {
		t.Fatal(err)
	}
	a, b, err := Connection()
	if err != nil {
		t.Fatal(err)
	}
	defer a.Close()
	defer b.Close()
	if err := Send(ours, "runnerd", a); err != nil {
		t.Fatal(err)
	}
	name, connection, err := receiver.Next()
	if err != nil || name != "runnerd" {
		t.Fatalf("Next() = %q, %v", name, err)
	}
	connection.Close()
	if len(heard) != 2 || heard[0] != want {
		t.Fatalf("heard %+v", heard)
	}
	if got := heard[1].Reason; len(got) != ReasonMax || strings.ContainsAny(got, "\x1b\n") {
		t.Errorf("a reason of %d bytes: %q", len(got), got)
	}
}

// TestHostileNoticesAreMalformed: only what is wholly understood is told.
func TestHostileNoticesAreMalformed(t *testing.T) {
	ours, receiver := newPair(t)
	receiver.Notices = func(n Notice) { t.Errorf("told %+v", n) }
	for _, text := range []string{`{`, `{}`, `{"program":"../x"}`, `{"program":"runnerd","ends":-1}`,
		`{"program":"runnerd","reason":"` + strings.Repeat("x", 3000) + `"}`} {
		if err := unix.Sendmsg(int(ours.Fd()), []byte(text), nil, nil, 0); err != nil {
			t.Fatal(err)
		}
		if _, _, err := receiver.Next(); !errors.Is(err, ErrMalformed) {
			t.Errorf("%.40q: %v", text, err)
		}
	}
	if err := SendNotice(ours, Notice{Program: "no name"}); err == nil {
		t.Error("sent about a program without a name")
	}
}

// TestLastWordsAreBounded: a child writes what it likes, and no more than there is room for.
func TestLastWordsAreBounded(t *testing.T) {
	file, variable, err := Words(4)
	if err != nil || variable != "COLLOID_LAST_WORDS_FD=4" {
		t.Fatal(variable, err)
	}
	defer file.Close()
	if words := ReadWords(file); words != "" {
		t.Errorf("nothing was said, read %q", words)
	}
	if _, err := file.WriteAt([]byte("x"), wordsSize); err == nil {
		t.Error("the memory grows")
	}
	if _, err := file.WriteAt([]byte("\n\n panic: \x1b[2J\xff\nmore"), 0); err != nil {
		t.Fatal(err)
	}
	if words := ReadWords(file); words != "panic: ?[2J?" {
		t.Errorf("read %q", words)
	}
	_ = os.Unsetenv(wordsVariable)
	TakeWords()(errors.New("nobody listens")) // without a launcher
}
