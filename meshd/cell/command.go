package cell

import (
	"encoding/binary"
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"colloid.net/ipc/uds"
	"colloid.net/meshd/clock"
	"colloid.net/meshd/join"
	"colloid.net/meshd/state"
	"colloid.net/meshd/wire"
	"colloid.net/workload"
)

// Command carries out one request of the local socket. reply is called exactly once, at once or later:
// after a write is durable, after a join, after a leave.
func (c *Cell) Command(now clock.Instant, request Request, reply func(Response)) {
	c.now = now
	c.command(request, reply)
	c.drain()
}

func (c *Cell) command(request Request, reply func(Response)) {
	switch request.Code {
	case uds.CodeHello:
		reply(document(c.Hello()))
	case uds.CodeStatus:
		reply(c.statusReply(request.Payload))
	case uds.CodeGet:
		reply(c.getReply(string(request.Payload)))
	case uds.CodeList:
		reply(c.listReply(string(request.Payload)))
	case uds.CodeSet, uds.CodeResolve, uds.CodeDelete:
		c.writeCommand(request, reply)
	case uds.CodeConnect:
		c.connect(request, reply)
	case uds.CodeLeave:
		drain, flags, ok := parseLeave(request.Payload)
		if !ok {
			reply(failure(uds.ErrorInvalid, "leave: malformed request"))
			return
		}
		c.leave(drain, flags, reply)
	case uds.CodeForget:
		c.forget(request.Payload, reply)
	case uds.CodePeers:
		reply(document(uds.PeerList{Peers: c.cellInfos()}))
	case uds.CodeExplain:
		reply(c.explainReply(string(request.Payload)))
	case uds.CodeDoor:
		c.door(request.Payload, reply)
	case uds.CodeAcceptLoss:
		c.acceptLoss(reply)
	case uds.CodeDrain:
		c.drainCommand(request.Payload, reply)
	case uds.CodeEnvironment:
		c.environmentCommand(request.Payload, reply)
	default:
		reply(failure(uds.ErrorInvalid, fmt.Sprintf("command 0x%02x is not known to this version", uint8(request.Code))))
	}
}

func document(v any) Response {
	raw, err := json.Marshal(v)
	if err != nil {
		return failure(uds.ErrorIO, err.Error())
	}
	return Response{Status: uds.OK, Payload: raw}
}

func failure(errno uint16, text string) Response {
	return Response{Status: uds.Error, Errno: errno, Text: text}
}

// writeCommand checks a write completely before anything is changed: the name, the value, the caller's
// knowledge of what it supersedes (F55), this cell's own (F56), and room (F50).
func (c *Cell) writeCommand(request Request, reply func(Response)) {
	write, err := uds.ParseWriteRequest(request.Payload)
	if err != nil {
		reply(failure(uds.ErrorInvalid, err.Error()))
		return
	}
	if request.Code == uds.CodeDelete {
		write.Value = nil
	}
	if response, ok := c.checkWrite(request.Code, write); !ok {
		reply(response)
		return
	}
	name, value := strings.Clone(write.Key), slices.Clone(write.Value)
	before, outcome := c.operatorValue(name), c.outcomeOf(name)
	c.operatorWrite(name, value, func(err error) {
		if err != nil {
			reply(writeFailure(name, err))
			return
		}
		c.remember(name, before, value, outcome)
		register, _ := c.store.Get([]byte(name))
		reply(Response{Status: uds.OK, Payload: binary.BigEndian.AppendUint64(nil, register.DotDigest())})
	})
}

// operatorValue is what a write is about to replace: the newest of the values.
func (c *Cell) operatorValue(name string) []byte {
	value, _ := c.newest([]byte(name))
	return slices.Clone(value)
}

func writeFailure(key string, err error) Response {
	switch err {
	case errPending, errWritesFull, errMoving:
		return failure(uds.ErrorBusy, key+": "+err.Error())
	case errLeft:
		return failure(uds.ErrorInvalid, key+": "+err.Error())
	}
	if isNoSpace(err) {
		return failure(uds.ErrorNoSpace, key+": not stored: the disk of this cell is full")
	}
	return failure(uds.ErrorIO, key+": not stored: "+err.Error())
}

func (c *Cell) checkWrite(code uds.Code, write uds.WriteRequest) (Response, bool) {
	if response, ok := c.checkWriteName(code, write); !ok {
		return response, false
	}
	if c.phase == Booting {
		return failure(uds.ErrorBusy, "this cell is still syncing with the cluster: try again in a moment"), false
	}
	register, found := c.store.Get([]byte(write.Key))
	live := found && !register.Absent()
	if code == uds.CodeDelete && !live {
		return Response{Status: uds.NotFound}, false
	}
	if code == uds.CodeResolve && write.Expect <= uds.ExpectAbsent {
		return failure(uds.ErrorInvalid, write.Key+": resolve must say which values it supersedes"), false
	}
	switch {
	case write.Expect == uds.ExpectAny:
	case write.Expect == uds.ExpectAbsent && !live:
	case found && register.DotDigest() == write.Expect:
	default:
		return Response{Status: uds.Conflict, Payload: c.getReply(write.Key).Payload}, false
	}
	if !found && c.store.Len() >= c.keyRoom() {
		return failure(uds.ErrorNoSpace, fmt.Sprintf("%s: the cluster holds %d keys, 90 %% of what its smallest cell can",
			write.Key, c.store.Len())), false
	}
	return Response{}, true
}

func (c *Cell) checkWriteName(code uds.Code, write uds.WriteRequest) (Response, bool) {
	name := []byte(write.Key)
	if len(name) == 0 || len(name) > wire.NameMax {
		return failure(uds.ErrorInvalid, fmt.Sprintf("key name of %d bytes: want 1 to %d", len(name), wire.NameMax)), false
	}
	if state.CategoryOf(name) != state.Operator || write.Key == state.DoorKey {
		return failure(uds.ErrorInvalid, write.Key+": this key is written by the cells themselves"), false
	}
	if !state.IsWorkload(name) {
		return failure(uds.ErrorInvalid, fmt.Sprintf("%q is no workload key: want spread.NAME, stateful.NAME or "+
			"wasm.NAME, where NAME is 1 to 63 of a-z, 0-9 and -", write.Key)), false
	}
	if len(write.Value) > wire.ValueMax {
		return failure(uds.ErrorInvalid, fmt.Sprintf("%s: specification of %d bytes: at most %d",
			write.Key, len(write.Value), wire.ValueMax)), false
	}
	if code == uds.CodeDelete {
		return Response{}, true
	}
	if len(write.Value) == 0 {
		return failure(uds.ErrorInvalid, write.Key+": empty specification: use delete"), false
	}
	spec, err := workload.Decode(write.Value)
	if err == nil {
		err = workload.CheckKey(write.Key, spec)
	}
	if err != nil {
		return failure(uds.ErrorInvalid, write.Key+": "+err.Error()), false
	}
	if other := c.namesake(write.Key); other != "" && !c.holds(write.Key) {
		return failure(uds.ErrorExists, write.Key+": "+other+
			" has this name: workloads of all kinds share their names, delete it first or choose another"), false
	}
	return Response{}, true
}

// namesake returns a workload of another kind with the name of key, "" if there is none. What a cell says of its
// instances and denials is kept under the name alone, so two would overwrite each other's.
func (c *Cell) namesake(key string) string {
	name := state.WorkloadName(key)
	for _, kind := range []string{state.PrefixSpread, state.PrefixStateful, state.PrefixWasm} {
		if other := kind + name; other != key && c.holds(other) {
			return other
		}
	}
	return ""
}

// holds reports whether a key has a value, or is about to.
func (c *Cell) holds(key string) bool {
	if register, found := c.store.Get([]byte(key)); found && !register.Absent() {
		return true
	}
	return slices.ContainsFunc(c.writes.pending, func(w pendingWrite) bool { return w.key == key })
}

// keyRoom is 90 % of the smallest store of any member (F50).
func (c *Cell) keyRoom() int {
	smallest := c.config.KeysMax
	for _, view := range c.views.cells {
		if view.hasContact && view.contact.KeysMax > 0 && view.contact.KeysMax < smallest &&
			(!view.hasStatus || view.status.Life != state.Gone) {
			smallest = view.contact.KeysMax
		}
	}
	return int(smallest) / 10 * 9
}

func (c *Cell) getReply(key string) Response {
	register, found := c.store.Get([]byte(key))
	if !found {
		return Response{Status: uds.NotFound}
	}
	entries := uds.Entries{Key: key, Digest: hex64(register.DotDigest())}
	entries.Entries = c.entryValues(key, register)
	for raw := register.Context(); len(raw) >= wire.DotSize; raw = raw[wire.DotSize:] {
		dot := wire.DotAt(raw)
		entries.Context = append(entries.Context, uds.ContextEntry{Actor: dot.Actor.String(), Sequence: dot.Sequence})
	}
	return document(entries)
}

func (c *Cell) entryValues(key string, r register) []uds.EntryValue {
	var values []uds.EntryValue
	for raw := r.Entries(); len(raw) > 0; {
		dot, value, rest, ok := wire.NextEntry(raw)
		if !ok {
			break
		}
		raw = rest
		values = append(values, uds.EntryValue{
			Actor: dot.Actor.String(), Sequence: dot.Sequence, Value: slices.Clone(value),
			Text: describeValue(key, value), Deleted: len(value) == 0, Sealed: c.environmentNames(key, value),
		})
	}
	if len(values) > 1 && state.IsWorkload([]byte(key)) {
		tellApart(values)
	}
	return values
}

// tellApart adds to the texts of competing specifications in what they differ.
func tellApart(values []uds.EntryValue) {
	versions := make([]*workload.Spec, len(values))
	for i := range values {
		if spec, err := workload.Decode(values[i].Value); err == nil {
			versions[i] = spec
		}
	}
	for i, text := range workload.Summaries(versions) {
		if text != "" {
			values[i].Text = text
		}
	}
}

// describeValue renders a value for people.
func describeValue(key string, value []byte) string {
	if len(value) == 0 {
		return "deleted"
	}
	name := []byte(key)
	if state.IsWorkload(name) {
		spec, err := workload.Decode(value)
		if err != nil {
			return "unreadable: " + err.Error()
		}
		return workload.Summary(spec)
	}
	return describeFact(key, value)
}

func describeFact(key string, value []byte) string {
	if _, field, ok := state.HealthKey(key); ok {
		switch field {
		case "status":
			if s, err := state.ParseCellStatus(value); err == nil {
				return fmt.Sprintf("%s, incarnation %d, said by %v", s.Life, s.Incarnation, s.Claimants)
			}
		case "contact":
			if contact, err := state.ParseCellContact(value); err == nil {
				return fmt.Sprintf("%s %s %v", contact.Hostname, contact.Software, contact.Candidates)
			}
		case "capacity":
			if capacity, err := state.ParseCellCapacity(value); err == nil {
				return fmt.Sprintf("cpu %dm, memory %d MiB", capacity.CPUMillicores, capacity.MemoryMiB)
			}
		}
	}
	if _, _, part, ok := state.SplitEnvironment(key); ok {
		return fmt.Sprintf("sealed secrets and files, part %d, %d bytes", part+1, len(value))
	}
	if _, field, ok := state.SplitRollout(key); ok {
		return describeRollout(field, value)
	}
	if _, _, ok := state.SplitEndpoint(key); ok {
		if endpoint, err := state.ParseCellEndpoint(value); err == nil {
			return fmt.Sprintf("%s, %d instances", endpoint.Address, len(endpoint.Instances))
		}
	}
	if _, _, ok := state.SplitDeny(key); ok {
		if denial, err := state.ParseCellDenial(value); err == nil {
			return denial.Reason
		}
	}
	return ""
}

// listMax bounds the names in one listing; more are cut, which the caller sees by the count.
const listMax = 100000

func (c *Cell) listReply(prefix string) Response {
	list := uds.KeyList{Keys: []string{}}
	c.store.Walk(prefix, func(r register) bool {
		if !r.Absent() {
			list.Keys = append(list.Keys, string(r.Name()))
		}
		return len(list.Keys) < listMax
	})
	slices.Sort(list.Keys)
	return document(list)
}

// forget declares a cell gone for good (SPEC-REVIEW Part 1 section 2.2).
func (c *Cell) forget(payload []byte, reply func(Response)) {
	if len(payload) != 8 {
		reply(failure(uds.ErrorInvalid, "forget: malformed request"))
		return
	}
	id := wire.CellID(binary.BigEndian.Uint64(payload))
	view := c.views.cells[id]
	switch {
	case c.phase == Booting:
		reply(failure(uds.ErrorBusy, "this cell is still syncing with the cluster: try again in a moment"))
		return
	case id == c.config.Self:
		reply(failure(uds.ErrorInvalid, "a cell does not forget itself: use `colloid leave`"))
		return
	case view == nil || !view.hasStatus:
		reply(Response{Status: uds.NotFound})
		return
	case view.status.Life == state.Alive || view.status.Life == state.Suspect:
		reply(failure(uds.ErrorInvalid, "cell "+id.String()+" is "+view.status.Life.String()+
			": only dead or leaving cells can be forgotten; run `colloid leave` on it"))
		return
	}
	c.declareGone(id)
	reply(Response{Status: uds.OK})
}

// declareGone states that a cell does not come back, and withdraws what it said.
func (c *Cell) declareGone(id wire.CellID) {
	status := state.CellStatus{
		Life: state.Gone, Incarnation: c.views.cells[id].status.Incarnation, Claimants: []wire.CellID{c.config.Self},
	}
	c.publish(state.StatusKey(id), state.AppendCellStatus(nil, status))
	for _, name := range c.keysOf(id) {
		c.publish(name, nil)
	}
}

// keysOf lists what a forgotten cell said of its instances; nobody else would ever withdraw it.
func (c *Cell) keysOf(id wire.CellID) []string {
	var names []string
	for _, endpoint := range sortedEndpointIDs(c.views.endpoints) {
		if endpoint.cell == id {
			names = append(names, state.EndpointKey(id, endpoint.workload))
		}
	}
	for _, denial := range sortedEndpointIDs(c.views.denials) {
		if denial.cell == id {
			names = append(names, state.DenyKey(id, denial.workload))
		}
	}
	if c.isDrained(id) {
		names = append(names, state.DrainKey(id))
	}
	return names
}

// door opens or shuts the cluster to joiners without the key (decision D1).
func (c *Cell) door(payload []byte, reply func(Response)) {
	if len(payload) != 1 || payload[0] > 1 {
		reply(failure(uds.ErrorInvalid, "lock: malformed request"))
		return
	}
	if c.phase == Booting {
		reply(failure(uds.ErrorBusy, "this cell is still syncing with the cluster: try again in a moment"))
		return
	}
	shut := payload[0] == 1
	answer := uds.DoorReply{Locked: shut}
	if shut {
		answer.Key = join.FormatDoorKey(join.DoorKey(c.cluster.Key))
	}
	if shut == c.views.doorShut {
		reply(document(answer))
		return
	}
	var value []byte
	if shut {
		value = []byte("locked")
	}
	c.operatorWrite(state.DoorKey, value, func(err error) {
		if err != nil {
			reply(writeFailure(state.DoorKey, err))
			return
		}
		reply(document(answer))
	})
}
