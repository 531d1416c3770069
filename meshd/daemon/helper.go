package daemon

import (
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"time"

	"colloid.net/ipc/message"
	"colloid.net/ipc/ring"
	"colloid.net/ipc/supply"
	"colloid.net/meshd/cell"
	"colloid.net/meshd/reconcile"
	"colloid.net/meshd/state"
	"google.golang.org/protobuf/proto"
)

// helper is meshd's end of the rings to runnerd. It belongs to the reactor's goroutine.
type helper struct {
	link     *ring.Link
	sequence uint64
	buffer   []byte
	address  []byte
	cellID   uint64
	// descriptors are those that runnerd passes beside the rings; they live as long as the link.
	descriptors  *ring.Descriptors
	channel      uint64    // of the last Attach
	takesHost    bool      // it acknowledges Host, see watchHelper
	takesCheck   bool      // it knows a Start that only asks
	takesPrepare bool      // it knows a Start that only prepares
	asked        time.Time // when the first command was sent that it has not, zero = none
	missed       int       // looks in a row that found it owing an answer
}

// helperEventsPerWake bounds the records handled before the reactor looks at its socket again.
const helperEventsPerWake = 256

// serveSupply takes connections from the launcher until the launcher is gone.
func (d *Daemon) serveSupply() {
	for {
		name, connection, err := d.supply.Next()
		switch {
		case errors.Is(err, supply.ErrMalformed):
			d.log.printf("supply socket: %v", err)
			continue
		case errors.Is(err, io.EOF):
			d.log.printf("the launcher is gone: stopping")
			d.stop(nil)
			return
		case err != nil:
			return // closed by us
		}
		d.connect(name, connection)
	}
}

// programEnded carries what the launcher saw to the cell.
func (d *Daemon) programEnded(n supply.Notice) {
	notice := cell.ProgramNotice{Program: n.Program, Ends: n.Ends, Window: time.Duration(n.WindowSeconds) * time.Second,
		Ago: time.Duration(n.AgoSeconds) * time.Second, Reason: n.Reason, Down: n.Down}
	d.inbox.post(func() { d.cell.ProgramEnded(d.reactor.Now(), notice) })
}

func (d *Daemon) connect(name string, connection *net.UnixConn) {
	if name != "runnerd" {
		d.log.printf("supply socket: no use for helper %q", name)
		connection.Close()
		return
	}
	link, err := ring.Accept(connection)
	if err != nil {
		d.log.printf("runnerd: %v", err)
		connection.Close()
		return
	}
	d.inbox.post(func() { d.helper.attach(d, link) })
}

func (h *helper) attach(d *Daemon, link *ring.Link) {
	h.detach(d)
	if err := d.reactor.WatchEventfd(link.Notify(), func() { h.drain(d, link) }); err != nil {
		d.log.printf("runnerd: %v", err)
		link.Close()
		return
	}
	descriptors := &ring.Descriptors{}
	h.link, h.sequence, h.descriptors = link, 0, descriptors
	h.takesHost, h.takesCheck, h.takesPrepare, h.asked, h.missed = false, false, false, time.Time{}, 0
	go func() {
		if err := receiveDescriptors(link, descriptors); err != io.EOF {
			d.log.printf("runnerd: connection ended: %v", err)
		}
		d.inbox.post(func() {
			if h.link == link {
				h.detach(d)
			}
		})
	}()
	h.drain(d, link)
}

// receiveDescriptors takes what runnerd passes until the link ends, and says why it did.
func receiveDescriptors(link *ring.Link, descriptors *ring.Descriptors) error {
	for {
		tag, file, err := link.ReceiveDescriptor()
		if err == nil {
			err = descriptors.Put(tag, file)
		}
		if err != nil {
			return err
		}
	}
}

func (h *helper) detach(d *Daemon) {
	if h.link == nil {
		return
	}
	d.reactor.Unwatch(h.link.Notify())
	h.link.Close()
	h.descriptors.Close()
	h.link = nil
	d.attachments.helperGone()
	d.blobs.helperGone()
	d.names.detached()
	d.cell.HelperGone(d.reactor.Now())
}

// drain handles what runnerd published. The ring is only trusted to carry bytes; a record that does not
// parse ends the connection, and the launcher makes a new one with a restarted helper.
func (h *helper) drain(d *Daemon, link *ring.Link) {
	if h.link != link {
		return
	}
	if h.buffer == nil {
		h.buffer = make([]byte, ring.RecordMax)
	}
	for range helperEventsPerWake {
		n, ok, err := link.Receive(h.buffer)
		if err == nil && !ok {
			return
		}
		var event message.Event
		if err == nil {
			err = proto.Unmarshal(h.buffer[:n], &event)
		}
		if err == nil {
			err = h.deliver(d, &event)
		}
		if err != nil {
			d.log.printf("runnerd: connection ended: %v", err)
			h.detach(d)
			return
		}
	}
	d.inbox.post(func() { h.drain(d, link) })
}

const helperProtocol = 1

func (h *helper) deliver(d *Daemon, event *message.Event) error {
	now := d.reactor.Now()
	h.acknowledged(d, event.Acknowledged)
	switch body := event.Body.(type) {
	case *message.Event_Hello:
		if body.Hello.Protocol != helperProtocol {
			return fmt.Errorf("protocol %d: want %d; install matching versions", body.Hello.Protocol, helperProtocol)
		}
		d.cell.HelperHello(now, helloOf(body.Hello))
		d.workers.listing()
		h.takesHost, h.takesCheck, h.takesPrepare = body.Hello.TakesHost, body.Hello.TakesCheck, body.Hello.TakesPrepare
		h.tellHost()
	case *message.Event_Instance:
		actual, err := actualOf(body.Instance)
		if err != nil {
			return err
		}
		d.cell.HelperInstance(now, actual)
		d.workers.observe(&actual)
	case *message.Event_Listing:
		d.cell.HelperListing(now)
		d.workers.listed()
	case *message.Event_Attached:
		if !d.attachments.attached(body.Attached) {
			d.workers.attached(body.Attached)
		}
		d.blobs.attached(body.Attached)
		d.names.attached(body.Attached)
	case *message.Event_Prepared:
		id, err := idOf(body.Prepared.Id)
		if err != nil {
			return err
		}
		d.cell.HelperPrepared(now, id, body.Prepared.Error)
	case *message.Event_Wanted:
		return d.blobs.wanted(body.Wanted)
	case *message.Event_Network:
		return d.names.network(h, body.Network)
	}
	return nil
}

func helloOf(hello *message.Hello) cell.HelperHello {
	var flags uint32
	if hello.RunsProcess {
		flags |= state.FlagProcess
	}
	if hello.RunsOci {
		flags |= state.FlagOCI
	}
	if hello.RunsWasm {
		flags |= state.FlagWasm
	}
	if hello.Forbids&message.ForbidsOCI != 0 {
		flags |= state.FlagForbidsOCI
	}
	if hello.Forbids&message.ForbidsWasm != 0 {
		flags |= state.FlagForbidsWasm
	}
	if hello.Forbids&message.ForbidsProcess != 0 {
		flags |= state.FlagForbidsProcess
	}
	var degradations []string
	var alarms []cell.HelperAlarm
	for _, text := range hello.Degradations {
		if alarm, ok := strings.CutPrefix(text, message.AlarmPrefix); ok {
			text, hint, _ := strings.Cut(alarm, message.HintMark)
			alarms = append(alarms, cell.HelperAlarm{Text: text, Hint: hint})
		} else {
			degradations = append(degradations, text)
		}
	}
	return cell.HelperHello{
		Software: hello.Software, Flags: flags, Degradations: degradations, Alarms: alarms, TakesPrepare: hello.TakesPrepare,
		Capacity: state.CellCapacity{
			CPUMillicores: hello.CpuMillicores, MemoryMiB: hello.MemoryMib, DiskMiB: hello.DiskMib,
			InstancesMax: hello.InstancesMax, LimitsEnforced: hello.LimitsEnforced,
		},
	}
}

var errNoIdentity = errors.New("event about an instance without an id")

func idOf(id *message.InstanceID) (reconcile.InstanceID, error) {
	if id == nil || id.Slot > 0xffff {
		return reconcile.InstanceID{}, errNoIdentity
	}
	return reconcile.InstanceID{KeyHash: id.KeyHash, Slot: uint16(id.Slot), Digest: id.Digest}, nil
}

func actualOf(instance *message.Instance) (reconcile.Actual, error) {
	id, err := idOf(instance.Id)
	if err != nil {
		return reconcile.Actual{}, err
	}
	actual := reconcile.Actual{
		ID: id, Key: instance.Key, PID: instance.Pid, StartTicks: instance.StartTicks, ExitCode: instance.ExitCode,
		Restarts: instance.Restarts, OOMKills: instance.OomKills, Reason: instance.Reason, Spec: instance.Spec,
		State: reconcile.State(instance.State), NeedsEnvironment: instance.NeedsEnvironment,
	}
	actual.Address, actual.AddressIPv6 = ownAddress(instance.Address), ownAddress(instance.AddressIpv6)
	for _, port := range instance.Ports {
		actual.Ports = append(actual.Ports, uint16(port))
	}
	return actual, nil
}

// Do implements cell.Helper.
func (h *helper) Do(action reconcile.Action) bool {
	if h.link == nil {
		return false
	}
	id := &message.InstanceID{
		KeyHash: action.ID.KeyHash, Slot: uint32(action.ID.Slot), Digest: action.ID.Digest,
	}
	command := &message.Command{}
	switch action.Kind {
	case reconcile.Start, reconcile.Check, reconcile.Prepare:
		if action.Kind == reconcile.Check && !h.takesCheck || action.Kind == reconcile.Prepare && !h.takesPrepare {
			return true // an older runnerd, which would start it
		}
		start := &message.Start{Id: id, Key: action.Key, Spec: action.Spec, Address: h.address, CellId: h.cellID,
			CheckOnly: action.Kind == reconcile.Check, PrepareOnly: action.Kind == reconcile.Prepare}
		if environment := action.Environment; environment != nil {
			for _, v := range environment.Variables {
				start.Environment = append(start.Environment, v.Name+"="+v.Value)
			}
			for _, f := range environment.Files {
				start.Files = append(start.Files, &message.File{Path: f.Path, Mode: uint32(f.Mode), Content: f.Content})
			}
		}
		command.Body = &message.Command_Start{Start: start}
	case reconcile.Withdraw:
		if !h.takesPrepare {
			return true
		}
		command.Body = &message.Command_Stop{Stop: &message.Stop{Id: id, PreparedOnly: true}}
	case reconcile.Stop:
		command.Body = &message.Command_Stop{Stop: &message.Stop{
			Id: id, GraceMilliseconds: uint32(action.Grace.Milliseconds()),
		}}
	default:
		panic(fmt.Sprintf("daemon: unknown action %d", action.Kind))
	}
	return h.command(command)
}

// command sends one command; false means "not now". There must be a link.
func (h *helper) command(command *message.Command) bool {
	command.Sequence = h.sequence + 1
	record, err := proto.Marshal(command)
	if err != nil || len(record) > ring.RecordMax {
		panic(fmt.Sprintf("daemon: a command of %d bytes does not fit a record: %v", len(record), err))
	}
	if !h.link.Send(record) {
		return false
	}
	h.sequence++
	if h.asked.IsZero() {
		h.asked = time.Now()
	}
	return true
}
