package sandbox

import (
	"errors"
	"fmt"
	"io/fs"
	"strconv"
	"strings"
	"sync"

	"colloid.net/runnerd/record"
)

// The ids of all instances of a host: 4096 ranges above those that systemd-nspawn and the usual
// /etc/subuid take theirs from, and below 2^31, from where on old file systems and programs stumble.
const (
	idFirst   = 0x70000000
	rangesMax = 4096
)

// ErrFull means that every range has an owner.
var ErrFull = errors.New("are in use")

// Allocator gives each instance a range of IDCount user and group ids that no other instance of this host
// has (F139). What it gave is durable before it is used. A range that was returned is given again as late
// as possible: files that an instance left somewhere do not soon belong to another. Its methods may be
// called from any goroutine.
type Allocator struct {
	path  string
	mutex sync.Mutex
	next  int
	taken map[string]int // number of the range by the instance's name
}

// OpenAllocator reads the file of an allocator; it need not exist. A damaged file is an error: guessing
// would give a range twice.
func OpenAllocator(path string) (*Allocator, error) {
	a := &Allocator{path: path, taken: map[string]int{}}
	r, err := record.Load(path)
	if errors.Is(err, fs.ErrNotExist) {
		return a, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read the id ranges in %s: %w", path, err)
	}
	if err := a.parse(r); err != nil {
		return nil, err
	}
	return a, nil
}

// parse reads what save wrote.
func (a *Allocator) parse(r record.Record) error {
	a.next = int(r.Uint("next"))
	used := map[int]bool{}
	for _, text := range r["range"] {
		number, name, found := strings.Cut(text, " ")
		n, err := strconv.Atoi(number)
		if !found || name == "" || err != nil || n < 0 || n >= rangesMax || used[n] {
			return fmt.Errorf("the id ranges in %s are damaged at %.80q: end all containers and remove the file", a.path, text)
		}
		used[n] = true
		a.taken[name] = n
	}
	if a.next < 0 || a.next >= rangesMax || len(a.taken) != len(r["range"]) {
		return fmt.Errorf("the id ranges in %s are damaged: end all containers and remove the file", a.path)
	}
	return nil
}

// Take gives the first id of the range of an instance, the same one each time until Return.
func (a *Allocator) Take(name string) (uint32, error) {
	a.mutex.Lock()
	defer a.mutex.Unlock()
	if n, taken := a.taken[name]; taken {
		return baseOf(n), nil
	}
	if len(a.taken) >= rangesMax {
		return 0, fmt.Errorf("all %d id ranges of this host %w", rangesMax, ErrFull)
	}
	used := make(map[int]bool, len(a.taken))
	for _, n := range a.taken {
		used[n] = true
	}
	n := a.next
	for used[n] {
		n = (n + 1) % rangesMax
	}
	before := a.next
	a.taken[name], a.next = n, (n+1)%rangesMax
	if err := a.save(); err != nil {
		delete(a.taken, name)
		a.next = before
		return 0, err
	}
	return baseOf(n), nil
}

func baseOf(n int) uint32 { return idFirst + uint32(n)*IDCount }

// Has reports whether an instance has a range.
func (a *Allocator) Has(name string) bool {
	a.mutex.Lock()
	defer a.mutex.Unlock()
	_, taken := a.taken[name]
	return taken
}

// Return gives the range of an instance back, once none of its processes and files is left.
func (a *Allocator) Return(name string) error {
	a.mutex.Lock()
	defer a.mutex.Unlock()
	n, taken := a.taken[name]
	if !taken {
		return nil
	}
	delete(a.taken, name)
	if err := a.save(); err != nil {
		a.taken[name] = n
		return err
	}
	return nil
}

// Names are the instances that have a range.
func (a *Allocator) Names() []string {
	a.mutex.Lock()
	defer a.mutex.Unlock()
	names := make([]string, 0, len(a.taken))
	for name := range a.taken {
		names = append(names, name)
	}
	return names
}

func (a *Allocator) save() error {
	if err := record.Save(a.path, a.record()); err != nil {
		return fmt.Errorf("write down the id ranges: %w", err)
	}
	return nil
}

func (a *Allocator) record() record.Record {
	r := record.Record{}
	r.SetUint("next", uint64(a.next))
	r["range"] = []string{}
	for name, n := range a.taken {
		r.Add("range", strconv.Itoa(n)+" "+name)
	}
	return r
}
