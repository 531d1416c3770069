package daemon

import (
	"io"
	"log"
	"os"

	"colloid.net/meshd/cell"
)

// logger writes lines to standard error, where the launcher or the journal picks them up. The wall clock
// appears here and nowhere else (F11).
type logger struct {
	out   *log.Logger
	debug bool
}

// debugVariable has the daemon print what is of interest only when something is looked into, unless it is empty.
const debugVariable = "COLLOID_DEBUG"

func newLogger(quiet bool) *logger {
	out := io.Writer(os.Stderr)
	if quiet {
		out = io.Discard
	}
	return &logger{log.New(out, "meshd: ", log.LstdFlags|log.Lmicroseconds|log.Lmsgprefix), os.Getenv(debugVariable) != ""}
}

func (l *logger) printf(format string, arguments ...any) { l.out.Printf(format, arguments...) }

var levelNames = [...]string{"debug: ", "", "warning: ", "error: "}

// Log implements cell.Logger.
func (l *logger) Log(level cell.Level, text string) {
	if level == cell.LevelDebug && !l.debug {
		return
	}
	l.out.Print(levelNames[level] + text)
}
