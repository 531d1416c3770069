package supply

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"runtime/debug"
	"strconv"

	"golang.org/x/sys/unix"
)

// Last words: what a child says about its own end, for the launcher and with it for `colloid status`. The
// child inherits a piece of memory of a fixed size, into which the Go runtime writes a panic, and the child
// an error that ends it. Standard error shows the same, but belongs to whoever started the launcher.

// wordsVariable names the descriptor in the environment of a child.
const wordsVariable = "COLLOID_LAST_WORDS_FD"

// wordsSize is all that a child can write: the beginning of a panic says what happened.
const wordsSize = 16 << 10

// Words makes the memory; the launcher keeps it and the child inherits it as a descriptor and its variable.
func Words(descriptor int) (file *os.File, variable string, err error) {
	fd, err := unix.MemfdCreate("last-words", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	if err != nil {
		return nil, "", fmt.Errorf("supply: memory for last words: %w", err)
	}
	file = os.NewFile(uintptr(fd), "last-words")
	if err = file.Truncate(wordsSize); err == nil {
		_, err = unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, unix.F_SEAL_GROW|unix.F_SEAL_SHRINK|unix.F_SEAL_SEAL)
	}
	if err != nil {
		file.Close()
		return nil, "", fmt.Errorf("supply: memory for last words: %w", err)
	}
	return file, wordsVariable + "=" + strconv.Itoa(descriptor), nil
}

// ReadWords gives the first line of what a child said, "" if nothing. The child may have written anything.
func ReadWords(file io.ReaderAt) string {
	text := make([]byte, wordsSize)
	n, _ := file.ReadAt(text, 0)
	for line := range bytes.Lines(text[:n]) {
		line = bytes.TrimSpace(bytes.TrimRight(line, "\x00\n"))
		if len(line) > 0 {
			return Printable(string(line))
		}
	}
	return ""
}

// TakeWords is the child's side: panics are written down from now on. What it returns writes down an error
// that is about to end the process. Without a launcher it does nothing.
func TakeWords() (say func(error)) {
	text, given := os.LookupEnv(wordsVariable)
	_ = os.Unsetenv(wordsVariable)
	descriptor, err := strconv.Atoi(text)
	if !given || err != nil || descriptor < 3 {
		return func(error) {}
	}
	unix.CloseOnExec(descriptor)
	file := os.NewFile(uintptr(descriptor), "last-words")
	if file == nil || debug.SetCrashOutput(file, debug.CrashOptions{}) != nil {
		return func(error) {}
	}
	return func(err error) { _, _ = fmt.Fprintln(file, err) }
}
