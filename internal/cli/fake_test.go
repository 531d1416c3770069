package cli

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"hash/fnv"
	"io"
	"net"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"colloid.net/ipc/uds"
	"colloid.net/workload"
)

// fakeDaemon answers on a real Unix socket with a store that knows dots and expectations, which is
// what the command line's promises are about.
type fakeDaemon struct {
	left     []uds.LeftInstance // of a leave
	listener net.Listener
	dying    bool // see restart
	drained  bool // a drain was asked for
	t        *testing.T
	path     string
	runnerd  *fakeRunnerd
	mutex    sync.Mutex
	keys     map[string][]uds.EntryValue
	sequence uint64
	writes   int      // SET, DELETE and RESOLVE that were carried out
	requests []string // code and payload of everything but GET, LIST and HELLO
	status   uds.Status
	refuse   map[uds.Code]refusal
	sealed   []string // environments that were stored
	// beforeWrite runs once before the next write is judged: what another operator does meanwhile.
	beforeWrite func()
}

type refusal struct {
	number uint16
	text   string
}

const ownActor = "00000000000000a1"

func newFake(t *testing.T) *fakeDaemon {
	t.Helper()
	d := &fakeDaemon{t: t, path: filepath.Join(t.TempDir(), "colloid.sock"),
		keys: map[string][]uds.EntryValue{}, refuse: map[uds.Code]refusal{}}
	listener, err := net.Listen("unix", d.path)
	if err != nil {
		t.Fatal(err)
	}
	d.accept(listener)
	d.runnerd = newFakeRunnerd(t, filepath.Dir(d.path))
	return d
}

func (d *fakeDaemon) accept(listener net.Listener) {
	d.listener = listener
	d.t.Cleanup(func() { listener.Close() })
	go func() {
		for {
			connection, err := listener.Accept()
			if err != nil {
				return
			}
			go d.serve(connection)
		}
	}()
}

// restart ends all connections after the next request of status, and answers again a moment later.
func (d *fakeDaemon) restart() {
	d.mutex.Lock()
	defer d.mutex.Unlock()
	d.dying = true
}

func (d *fakeDaemon) serve(connection net.Conn) {
	defer connection.Close()
	for {
		var header [uds.FrameHeaderSize]byte
		if _, err := io.ReadFull(connection, header[:]); err != nil {
			return
		}
		payload := make([]byte, binary.BigEndian.Uint32(header[:])&0xffffff)
		if _, err := io.ReadFull(connection, payload); err != nil {
			return
		}
		d.mutex.Lock()
		if d.dying && uds.Code(header[0]) == uds.CodeStatus && d.drained {
			d.dying = false
			d.mutex.Unlock()
			d.listener.Close()
			time.AfterFunc(700*time.Millisecond, func() {
				d.mutex.Lock()
				defer d.mutex.Unlock()
				listener, err := net.Listen("unix", d.path)
				if err != nil {
					d.t.Error(err)
					return
				}
				d.status.Workloads = nil
				d.accept(listener)
			})
			return
		}
		status, reply := d.answer(uds.Code(header[0]), payload)
		d.mutex.Unlock()
		writeFrame(connection, status, reply)
		if status == uds.OK && len(reply) > 0 {
			writeFrame(connection, uds.OK, nil)
		}
	}
}

func writeFrame(w io.Writer, status uds.ReplyStatus, payload []byte) {
	frame := binary.BigEndian.AppendUint32(nil, uint32(status)<<24|uint32(len(payload)))
	w.Write(append(frame, payload...))
}

func (d *fakeDaemon) answer(code uds.Code, payload []byte) (uds.ReplyStatus, []byte) {
	if r, ok := d.refuse[code]; ok {
		return uds.Error, append(binary.BigEndian.AppendUint16(nil, r.number), r.text...)
	}
	switch code {
	case uds.CodeHello:
		return document(uds.HelloReply{Protocol: 1, Cell: ownActor, Version: "test", State: d.status.Cell.State})
	case uds.CodeGet:
		if len(d.keys[string(payload)]) == 0 {
			return uds.NotFound, nil
		}
		return document(d.entries(string(payload)))
	case uds.CodeList:
		return document(uds.KeyList{Keys: d.list(string(payload))})
	case uds.CodeSet, uds.CodeDelete, uds.CodeResolve:
		return d.write(code, payload)
	case uds.CodeEnvironment:
		r, err := uds.ParseEnvironmentRequest(payload)
		if err != nil {
			d.t.Errorf("malformed environment request")
		}
		if r.Store {
			d.sealed = append(d.sealed, string(r.Plain))
		}
		digest := sha256.Sum256(r.Plain)
		return uds.OK, digest[:]
	}
	d.requests = append(d.requests, fmt.Sprintf("%02x %q", code, payload))
	switch code {
	case uds.CodeStatus:
		return document(d.status)
	case uds.CodeWasmInvoke:
		return d.invoke(payload)
	case uds.CodeConnect:
		return document(uds.ConnectReply{Cluster: "00000000000000cc", Members: 3})
	case uds.CodeDoor:
		return document(uds.DoorReply{Locked: payload[0] == 1, Key: strings.Repeat("k", 4)[:4*int(payload[0])]})
	case uds.CodeExplain:
		return document(uds.Explanation{Key: string(payload), State: "unsatisfied", Reason: "one cell lacks memory",
			Ranking: []uds.RankedCell{{Cell: ownActor, Score: "f0", Placed: true, Verdict: "placed"},
				{Cell: ownActor, Score: "e0", Verdict: "denied\x1b[2J"}}})
	case uds.CodeDrain:
		d.drained = true
	case uds.CodeLeave:
		d.status.Cell.State = "gone"
		if len(d.left) > 0 {
			return document(uds.LeaveReply{Left: d.left})
		}
	}
	return uds.OK, nil
}

func document(value any) (uds.ReplyStatus, []byte) {
	text, err := json.Marshal(value)
	if err != nil {
		panic(err)
	}
	return uds.OK, text
}

func (d *fakeDaemon) list(prefix string) []string {
	var keys []string
	for key := range d.keys {
		if strings.HasPrefix(key, prefix) {
			keys = append(keys, key)
		}
	}
	slices.Sort(keys)
	slices.Reverse(keys) // the order of key hashes looks random to an operator
	return keys
}

func (d *fakeDaemon) entries(key string) uds.Entries {
	hash := fnv.New64a()
	for _, v := range d.keys[key] {
		fmt.Fprint(hash, dotOf(v))
	}
	return uds.Entries{Key: key, Digest: fmt.Sprintf("%016x", hash.Sum64()), Entries: d.keys[key]}
}

func (d *fakeDaemon) write(code uds.Code, payload []byte) (uds.ReplyStatus, []byte) {
	if hook := d.beforeWrite; hook != nil {
		d.beforeWrite = nil
		hook()
	}
	request, err := uds.ParseWriteRequest(payload)
	if err != nil {
		d.t.Errorf("malformed write request %q", payload)
	}
	held := d.entries(request.Key)
	seen, _ := expectation(&held)
	if len(held.Entries) == 0 {
		seen = uds.ExpectAbsent
	}
	if request.Expect != uds.ExpectAny && request.Expect != seen {
		_, text := document(held)
		return uds.Conflict, text
	}
	d.writes++
	d.keys[request.Key] = []uds.EntryValue{d.value(ownActor, request.Value)}
	return uds.OK, []byte("dot")
}

func (d *fakeDaemon) value(actor string, value []byte) uds.EntryValue {
	d.sequence++
	return uds.EntryValue{Actor: actor, Sequence: d.sequence, Value: value, Deleted: len(value) == 0}
}

// hold puts one value per text under the key of the first, as if they had been written concurrently.
func (d *fakeDaemon) hold(texts ...string) string {
	d.t.Helper()
	key := ""
	for i, text := range texts {
		blocks, err := workload.Parse("test", []byte(text))
		if err != nil {
			d.t.Fatal(err)
		}
		if spec := blocks[0].Spec; spec.Runtime == workload.RuntimeOCI && spec.ImageDigest == [32]byte{} {
			spec.ImageDigest = d.runnerd.digest(spec.Image) // as apply would have pinned it
		}
		encoded, err := workload.Encode(blocks[0].Spec)
		if err != nil {
			d.t.Fatal(err)
		}
		key = blocks[0].Key()
		d.keys[key] = append(d.keys[key], d.value(fmt.Sprintf("%016x", 0xa1+i), encoded))
	}
	return key
}

// held decodes the one value of a key.
func (d *fakeDaemon) held(key string) *workload.Spec {
	d.t.Helper()
	if len(d.keys[key]) != 1 {
		d.t.Fatalf("%s has %d values", key, len(d.keys[key]))
	}
	spec, err := workload.Decode(d.keys[key][0].Value)
	if err != nil {
		d.t.Fatal(err)
	}
	return spec
}

// result of one run of the command line.
type result struct {
	exit           int
	output, errors string
}

func (d *fakeDaemon) run(input string, arguments ...string) result {
	return runCommand(input, map[string]string{"COLLOID_SOCKET": d.path}, arguments...)
}

func runCommand(input string, variables map[string]string, arguments ...string) result {
	var output, errors bytes.Buffer
	exit := Main(context.Background(), arguments, Environment{
		Input: strings.NewReader(input), Output: &output, Errors: &errors,
		Variable: func(name string) string { return variables[name] },
	})
	return result{exit, output.String(), errors.String()}
}

func (r result) expect(t *testing.T, exit int, output string) {
	t.Helper()
	if r.exit != exit || r.output != output {
		t.Errorf("exit %d, output %q, errors %q\nwant exit %d, output %q", r.exit, r.output, r.errors, exit, output)
	}
}

// expectError demands an exit status and words on standard error, each line in the house's form.
func (r result) expectError(t *testing.T, exit int, words ...string) {
	t.Helper()
	if r.exit != exit {
		t.Errorf("exit %d, want %d; errors %q", r.exit, exit, r.errors)
	}
	for _, word := range words {
		if !strings.Contains(r.errors, word) {
			t.Errorf("errors %q do not say %q", r.errors, word)
		}
	}
}
