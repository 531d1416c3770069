package supply

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strings"

	"golang.org/x/sys/unix"
)

// Notice is what the launcher tells meshd about a program that ends by itself. It travels on the supply
// socket as a datagram of its own, JSON without a descriptor, and again to each new meshd.
type Notice struct {
	Program string `json:"program"` // like a name of a connection
	Ends    int    `json:"ends"`    // in the last WindowSeconds
	// WindowSeconds is also how long a reader shows the notice after the last end.
	WindowSeconds int `json:"window_seconds"`
	AgoSeconds    int `json:"ago_seconds"` // since the last end
	// Reason is how it ended the last time and the first line of what it said about that, at most ReasonMax
	// bytes.
	Reason string `json:"reason"`
	Down   bool   `json:"down,omitempty"` // nobody starts it again
}

// ReasonMax bounds the reason of a notice; noticeMax the datagram, with room for what JSON escapes.
const (
	ReasonMax = 300
	noticeMax = 8 * ReasonMax
)

// SendNotice passes a notice. Like Send, it never blocks.
func SendNotice(ours *os.File, n Notice) error {
	n.Reason = Printable(n.Reason)
	text, err := json.Marshal(n)
	if err != nil || !validName([]byte(n.Program)) || len(text) > noticeMax {
		return fmt.Errorf("supply: invalid notice about %q of %d bytes: %w", n.Program, len(text), err)
	}
	err = unix.Sendmsg(int(ours.Fd()), text, nil, nil, unix.MSG_DONTWAIT|unix.MSG_NOSIGNAL)
	if errors.Is(err, unix.EAGAIN) {
		return ErrFull
	}
	if err != nil {
		return fmt.Errorf("supply: send a notice about %s: %w", n.Program, err)
	}
	return nil
}

func parseNotice(text []byte) (n Notice, ok bool) {
	if len(text) == 0 || text[0] != '{' || json.Unmarshal(text, &n) != nil {
		return Notice{}, false
	}
	n.Reason = Printable(n.Reason)
	return n, validName([]byte(n.Program)) && n.Ends >= 0 && n.WindowSeconds >= 0 && n.AgoSeconds >= 0
}

// Printable makes one line of printable ASCII of at most ReasonMax bytes.
func Printable(text string) string {
	text = strings.Map(func(r rune) rune {
		if r < ' ' || r > '~' {
			return '?'
		}
		return r
	}, text[:min(len(text), ReasonMax)])
	return text
}
