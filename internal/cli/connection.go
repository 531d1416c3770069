package cli

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"colloid.net/internal/launcher"
	"colloid.net/ipc/uds"
	"colloid.net/workload"
	"golang.org/x/sys/unix"
)

// environmentSocket names the command socket.
const environmentSocket = "COLLOID_SOCKET"

// socketPlaces lists where the command socket may be, best first. A place that was named on purpose
// is the only one.
func (a *app) socketPlaces() []string {
	if a.socket != "" {
		return []string{plainPath(a.socket)}
	}
	if path := a.Variable(environmentSocket); path != "" {
		return []string{plainPath(path)}
	}
	if dir := a.Variable(launcher.EnvironmentDirectory); dir != "" {
		return []string{filepath.Join(launcher.RunDirectory(dir), launcher.SocketName),
			filepath.Join(dir, launcher.SocketName)}
	}
	places := []string{filepath.Join(launcher.SystemRunDirectory, launcher.SocketName)}
	if dir := launcher.UserDirectory(a.Variable); dir != "" {
		places = append(places, filepath.Join(launcher.RunDirectory(dir), launcher.SocketName))
	}
	return places
}

// plainPath makes of a path below the working directory one that says so: package uds refuses names that the
// kernel or another program could take for something else than a file (F135, F136).
func plainPath(path string) string {
	if filepath.IsAbs(path) || strings.HasPrefix(path, ".") || strings.HasPrefix(path, "@") {
		return path
	}
	return "." + string(filepath.Separator) + path
}

// session is one connection to the daemon.
type session struct {
	client *uds.Client
	path   string
}

// dial connects to the first place where a daemon answers.
func (a *app) dial() (*session, error) {
	var refused error
	places := a.socketPlaces()
	for _, path := range places {
		if _, err := os.Lstat(path); errors.Is(err, os.ErrNotExist) {
			continue
		}
		if errors.Is(unix.Access(path, unix.W_OK), unix.EACCES) {
			refused = fmt.Errorf("%s: %w: become root or a member of group %s, for changes %s too", path,
				os.ErrPermission, uds.GroupRead, uds.GroupWrite)
			continue
		}
		client, err := uds.Dial(path)
		if err == nil {
			return &session{client, path}, nil
		}
		if !errors.Is(refused, os.ErrPermission) {
			refused = err // says what to do
		}
	}
	switch {
	case errors.Is(refused, os.ErrPermission): // somebody may well answer there
		return nil, fail(ExitError, "%w", refused)
	case refused != nil:
		return nil, fail(ExitUnreachable, "%w", refused)
	}
	return nil, fail(ExitUnreachable, "%w (no socket at %s): start it with `colloid`, "+
		"or name the socket with --socket", errNoDaemon, strings.Join(places, " or "))
}

// errNoDaemon: there is no socket at any of the places.
var errNoDaemon = errors.New("no daemon runs here")

func (s *session) close() { s.client.Close() }

// with dials, runs f and closes.
func (a *app) with(f func(*session) error) error {
	s, err := a.dial()
	if err != nil {
		return err
	}
	defer s.close()
	return f(s)
}

// call sends a request and decodes the JSON document of the answer; nil means that there is none.
func (s *session) call(code uds.Code, payload []byte, document any) error {
	reply, err := s.client.Do(code, payload)
	if err != nil || document == nil {
		return err
	}
	return understand(reply, document)
}

// callOptional is call for a request whose answer may be empty, which leaves the document as it is.
func (s *session) callOptional(code uds.Code, payload []byte, document any) error {
	reply, err := s.client.Do(code, payload)
	if err != nil || len(reply) == 0 {
		return err
	}
	return understand(reply, document)
}

func understand(reply []byte, document any) error {
	if err := json.Unmarshal(reply, document); err != nil {
		return fail(ExitError, "the daemon's answer is not understood (%w): are colloid and meshd of one version?", err)
	}
	return nil
}

// explain turns an error of call into a failure. What is the thing asked for; key errors are handled
// before.
func (s *session) explain(what string, err error) error {
	var f *failure
	var refused *uds.ReplyError
	switch {
	case err == nil || errors.As(err, &f):
		return err
	case errors.Is(err, uds.ErrNotFound):
		return fail(ExitError, "%s: not found", what)
	case errors.As(err, &refused):
		text := strings.TrimPrefix(refused.Error(), what+": ") // meshd names the key as well
		return fail(ExitError, "%s: %s%s", what, printable(text), hint(refused.Errno, text))
	}
	return fail(ExitUnreachable, "%s: the daemon at %s: %w", what, s.path, err)
}

// keyLengthMax is the longest name that a cell stores, in bytes.
const keyLengthMax = 96

// hint is the way out of an error number, where the daemon's text does not name it.
func hint(number uint16, text string) string {
	switch {
	case number == uds.ErrorPermission && !strings.Contains(text, uds.GroupWrite):
		return ": become root or a member of group " + uds.GroupWrite
	case number == uds.ErrorBusy && !strings.Contains(text, "try again"):
		return ": try again in a few seconds"
	case number == uds.ErrorNoSpace && strings.Contains(text, "disk"):
		return ": free disk space on this cell"
	}
	return ""
}

// get reads a key. A key that does not exist gives entries without values.
func (s *session) get(key string) (*uds.Entries, error) {
	entries := &uds.Entries{Key: key}
	err := s.call(uds.CodeGet, []byte(key), entries)
	if errors.Is(err, uds.ErrNotFound) {
		return &uds.Entries{Key: key}, nil
	}
	return entries, s.explain(key, err)
}

// list returns the keys with a prefix, sorted.
func (s *session) list(prefix string) ([]string, error) {
	var keys uds.KeyList
	if err := s.call(uds.CodeList, []byte(prefix), &keys); err != nil {
		return nil, s.explain("list keys", err)
	}
	slices.Sort(keys.Keys)
	return keys.Keys, nil
}

// Flags of a STATUS request.
const statusMetrics = 1

func (s *session) status(metrics bool) (*uds.Status, error) {
	flags := byte(0)
	if metrics {
		flags = statusMetrics
	}
	status := new(uds.Status)
	return status, s.explain("status", s.call(uds.CodeStatus, []byte{flags}, status))
}

func (s *session) hello() (*uds.HelloReply, error) {
	reply := new(uds.HelloReply)
	request := binary.BigEndian.AppendUint16(nil, uds.ProtocolVersion)
	return reply, s.explain("hello", s.call(uds.CodeHello, request, reply))
}

var workloadKinds = []workload.Kind{workload.KindSpread, workload.KindStateful, workload.KindWasm}

// fullKey completes the shorthand "web" to "spread.web" when only one kind of workload has the name.
func (s *session) fullKey(name string) (string, error) {
	if !workload.ValidName(name) {
		if !strings.Contains(name, ".") || len(name) > keyLengthMax || printable(name) != name {
			return "", fail(ExitUsage, "%.80q is no key: write the name of a workload, or a key as in spread.web", name)
		}
		return name, nil // has a dot: a full key; the daemon judges the rest
	}
	var found []string
	for _, kind := range workloadKinds {
		key := workload.Key(kind, name)
		entries, err := s.get(key)
		if err != nil {
			return "", err
		}
		if len(liveValues(entries)) > 0 {
			found = append(found, key)
		}
	}
	switch len(found) {
	case 0:
		return "", fail(ExitError, "no workload is named %s: see colloid status", name)
	case 1:
		return found[0], nil
	}
	return "", fail(ExitUsage, "%s is ambiguous, use one of %q", name, found)
}
