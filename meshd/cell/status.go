package cell

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"colloid.net/ipc/uds"
	"colloid.net/meshd/reconcile"
	"colloid.net/meshd/state"
	"colloid.net/meshd/wire"
	"colloid.net/workload"
)

// statusFlagMetrics asks for the counters as well (SPEC-REVIEW Part 1 section 5.2).
const statusFlagMetrics = 1

func (c *Cell) statusReply(payload []byte) Response {
	c.freshPlan()
	status := uds.Status{
		Cell:      c.selfStatus(),
		Cells:     c.cellInfos(),
		Network:   c.networkInfo(),
		Workloads: c.workloadStatuses(),
		Conflicts: c.conflictInfos(),
	}
	c.isolationAlarm(func(severity, text, hint string) { // it casts doubt on all the rest
		status.Alarms = append(status.Alarms, uds.Alarm{Severity: severity, Text: text, Hint: hint})
		status.Cell.CutOff = text
	})
	status.Alarms = append(status.Alarms, c.alarms.list()...)
	status.Alarms = append(status.Alarms, c.derivedAlarms(status.Workloads)...)
	status.NeedsHuman = len(status.Conflicts) > 0
	for _, alarm := range status.Alarms {
		status.NeedsHuman = status.NeedsHuman || alarm.Severity == "critical"
	}
	for i := range status.Workloads {
		state := status.Workloads[i].State
		status.NeedsHuman = status.NeedsHuman || state == "held" || state == "stalled"
	}
	if len(payload) == 1 && payload[0]&statusFlagMetrics != 0 {
		status.Metrics = c.metrics()
	}
	return document(status)
}

func (c *Cell) selfStatus() uds.CellSelf {
	door := "open"
	if c.views.doorShut || c.config.Lost != "" {
		door = "locked"
	}
	address := ""
	if len(c.config.Addresses) > 0 {
		address = c.config.Addresses[0].Address.String()
	}
	return uds.CellSelf{
		ID: c.config.Self.String(), State: c.phase.String(), Version: c.config.Software,
		Cluster: hex64(c.clusterID), Door: door, Address: address, Driver: c.config.Driver,
		Incarnation: c.incarnation, UptimeSeconds: int64(c.now.Sub(c.started) / time.Second),
		Authoritative: c.boot.authoritative, Keys: c.store.Len(), StateDirectory: c.config.Directory,
		Helpers: []uds.HelperInfo{{
			Name: "runnerd", Connected: c.runner.connected, Version: c.runner.hello.Software,
			Degradations: c.runner.hello.Degradations, SilentSeconds: c.silence(),
		}},
	}
}

func (c *Cell) cellInfos() []uds.CellInfo {
	instances := make(map[wire.CellID]int)
	for id, endpoint := range c.views.endpoints {
		instances[id.cell] += len(endpoint.Instances)
	}
	infos := []uds.CellInfo{}
	for _, id := range c.cellIDs() {
		view := c.views.cells[id]
		if !view.hasContact && !view.hasStatus {
			continue
		}
		info := uds.CellInfo{
			ID: id.String(), Hostname: view.contact.Hostname, State: "unknown", Self: id == c.config.Self,
			InPlacement: c.healthOf(view) == healthFull, Drained: c.isDrained(id), Reach: view.contact.Reach.String(), HeardSeconds: -1,
			Version: view.contact.Software, Arch: view.contact.Arch, Runtimes: runtimesOf(view.contact.Flags),
			CPUMillicores: view.capacity.CPUMillicores, MemoryMiB: view.capacity.MemoryMiB,
			LimitsEnforced: view.capacity.LimitsEnforced, Instances: instances[id],
		}
		if view.hasStatus {
			info.State = view.status.Life.String()
		}
		if view.heldUntil > c.now {
			info.HeldSeconds = int((view.heldUntil.Sub(c.now) + time.Second - 1) / time.Second)
		}
		c.describeContact(&info, view)
		if m := c.members.Get(id); info.Self || m != nil && !c.unreached(m) { // else they are of the past
			info.CPUPercent = c.loadOf(id, state.LoadCPU)
			info.MemoryPercent = c.loadOf(id, state.LoadMemory)
			info.DiskPercent = c.loadOf(id, state.LoadDisk)
		}
		infos = append(infos, info)
	}
	return infos
}

func (c *Cell) describeContact(info *uds.CellInfo, view *cellView) {
	if len(view.contact.Candidates) > 0 {
		info.Address = view.contact.Candidates[0].Address.String()
	}
	if info.Self {
		info.HeardSeconds = 0
		return
	}
	m := c.members.Get(view.id)
	if m == nil {
		return
	}
	if m.Address.IsValid() {
		info.Address = m.Address.String()
	}
	c.describePath(info, m)
	info.Unreached = info.State != state.Dead.String() && c.unreached(m)
	info.RTTMicrosecond = int64(m.RTT / time.Microsecond)
	if m.Heard != 0 {
		info.HeardSeconds = float64(c.now.Sub(m.Heard)/time.Millisecond) / 1000
	}
}

// loadOf returns a load figure of a cell, nil if it has not said one.
func (c *Cell) loadOf(id wire.CellID, field string) *int {
	value, ok := c.newest([]byte(state.LoadKey(id, field)))
	if !ok {
		return nil
	}
	percent, err := state.ParseLoad(value)
	if err != nil {
		return nil
	}
	figure := int(percent)
	return &figure
}

func runtimesOf(flags uint32) []string {
	names := []string{}
	if flags&state.FlagOCI != 0 {
		names = append(names, "oci")
	}
	if flags&state.FlagProcess != 0 {
		names = append(names, "process")
	}
	if flags&state.FlagWasm != 0 {
		names = append(names, "wasm")
	}
	return names
}

func (c *Cell) workloadStatuses() []uds.WorkloadStatus {
	statuses := []uds.WorkloadStatus{}
	for _, key := range c.workloadKeys() {
		statuses = append(statuses, c.workloadStatus(c.views.workloads[key]))
	}
	return statuses
}

func (c *Cell) workloadStatus(view *workloadView) uds.WorkloadStatus {
	status := uds.WorkloadStatus{Key: view.key, Digest: hex64(view.digest), Instances: c.instancesOf(view)}
	if view.spec != nil {
		status.Runtime = runtimeName(view.spec.Runtime)
		status.Image = view.spec.Image
		status.Replicas = int(view.spec.Replicas)
		status.Notes = workloadNotes(view.spec)
	}
	old := 0
	for _, instance := range status.Instances {
		if instance.State != state.EndpointReady.String() {
			continue
		}
		status.Serving++
		if instance.Placed && instance.Digest == status.Digest {
			status.Ready++
		} else if instance.Digest != status.Digest {
			old++
		}
	}
	c.describeRollout(&status, view)
	unplaced, reason := c.plan.Unplaced(view.hash)
	ended, how, hasEnded := endedState(&status)
	_, conflicted := c.views.conflicts[view.key]
	switch {
	case conflicted:
		status.State, status.Reason = "conflict", "frozen until `colloid resolve "+view.key+"`"
	case view.invalid != "":
		status.State, status.Reason = "invalid", view.invalid
	case hasEnded && ended == stateFailed:
		status.State, status.Reason = ended, how
	case view.held:
		status.State, status.Reason = "held", fmt.Sprintf("the last good version %s runs instead of %s, which failed on cell %s: %s",
			status.Digest, status.Wanted, view.verdict.Cell, view.verdict.Reason)
	case view.verdict != nil:
		status.State, status.Reason = "stalled", fmt.Sprintf("the update failed on cell %s and was stopped: %s", view.verdict.Cell,
			view.verdict.Reason)
	case status.Ready < status.Replicas && unsupervisedReason(status.Instances) != "":
		status.State, status.Reason = stateUnsupervised, unsupervisedReason(status.Instances)
	case unplaced > 0:
		status.State, status.Reason = "unsatisfied", reason
	case status.Ready >= status.Replicas:
		status.State = "ok"
	case hasEnded:
		status.State = ended
	case old > 0:
		status.State, status.Reason = "updating", notReadyReason(status.Instances)
	default:
		status.State, status.Reason = "starting", cmp.Or(endedReason(status.Instances), notReadyReason(status.Instances))
	}
	if reason := c.waitsForPreparation(view); reason != "" && (status.State == "updating" || status.State == "starting") {
		status.Reason = reason
	}
	if reason := c.waitsForEnvironment(view); reason != "" && status.Reason == "" && status.State != "ok" {
		status.Reason = reason
	}
	return status
}

func (c *Cell) describeRollout(status *uds.WorkloadStatus, view *workloadView) {
	if view.held {
		status.Wanted = hex64(view.wantedDigest)
	}
	if rollout := c.views.rollouts[state.WorkloadName(view.key)]; rollout != nil {
		good := goodSpec(view.key, rollout.good)
		status.Good = good != nil && good.InstanceDigest() == view.digest
	}
}

// endedReason says why an instance does not stay, or, where its cell had no room to say it, who knows.
func endedReason(instances []uds.InstanceInfo) string {
	for _, instance := range instances {
		switch {
		case instance.State != state.EndpointBackoff.String():
		case instance.Reason != "":
			return "on cell " + instance.Cell + ": " + instance.Reason
		default:
			return "an instance has ended: `colloid explain` on " + instance.Cell + " says how"
		}
	}
	return ""
}

// notReadyReason says why an instance is not ready: how its health check fails, or, of one of this cell, what it does
// before it runs: how far the pull of its image is, for one. Other cells are not told that, since it changes all the
// time.
func notReadyReason(instances []uds.InstanceInfo) string {
	for _, instance := range instances {
		if (instance.State == state.EndpointStarting.String() || instance.State == state.EndpointUnready.String()) &&
			instance.Reason != "" {
			return "on cell " + instance.Cell + ": " + instance.Reason
		}
	}
	return ""
}

// instancesOf lists what all cells say of a workload's instances.
func (c *Cell) instancesOf(view *workloadView) []uds.InstanceInfo {
	placed := make(map[wire.CellID]bool)
	for _, replica := range c.plan.Of(view.hash) {
		placed[replica.Cell] = true
	}
	infos := []uds.InstanceInfo{}
	name := state.WorkloadName(view.key)
	for _, id := range c.cellIDs() {
		endpoint := c.views.endpoints[endpointID{id, name}]
		if endpoint == nil || endpoint.KeyHash != view.hash {
			continue
		}
		unreachable, unsupervised := c.healthOf(c.views.cells[id]) == healthOut, c.unsupervisedAt(id)
		for _, instance := range endpoint.Instances {
			info := uds.InstanceInfo{
				Cell: id.String(), Slot: int(instance.Slot), State: instance.State.String(),
				Ports: instance.Ports, Restarts: int(instance.Restarts), Digest: hex64(instance.Digest),
				Placed: placed[id], Reason: instance.Reason,
			}
			if instance.DataOn != 0 {
				info.DataOn = instance.DataOn.String()
			}
			if endpoint.Address.IsValid() {
				info.Address = endpoint.Address.String()
			}
			if instance.State == state.EndpointExited {
				code := int(instance.ExitCode)
				info.State, info.ExitCode = stateEnded, &code
				if code != 0 {
					info.State = stateFailed
				}
			}
			if unreachable {
				info.State = "unreachable"
			} else if unsupervised {
				info.State = stateUnsupervised
			}
			if id == c.config.Self {
				c.describeLocal(&info, view.hash, instance)
			}
			infos = append(infos, info)
		}
	}
	return infos
}

func (c *Cell) describeLocal(info *uds.InstanceInfo, keyHash uint64, instance state.EndpointInstance) {
	actual, ok := c.runner.actual[reconcile.InstanceID{KeyHash: keyHash, Slot: instance.Slot, Digest: instance.Digest}]
	if !ok {
		return
	}
	info.PID, info.Reason, info.OOMKills = int(actual.PID), actual.Reason, int(actual.OOMKills)
	if info.Reason == "" && (actual.State == reconcile.Backoff || actual.State == reconcile.Exited) {
		info.Reason = whyEnded(&actual)
	}
	if actual.State == reconcile.Exited {
		info.Reason += textNotAgain
	}
}

func runtimeName(r workload.Runtime) string {
	switch r {
	case workload.RuntimeOCI:
		return "oci"
	case workload.RuntimeWasm:
		return "wasm"
	case workload.RuntimeProcess:
		return "process"
	}
	return "unknown"
}

// conflictsShownMax bounds the conflicts listed in one status; an alarm counts the rest.
const conflictsShownMax = 100

func (c *Cell) conflictInfos() []uds.ConflictInfo {
	keys := make([]string, 0, len(c.views.conflicts))
	for key := range c.views.conflicts {
		keys = append(keys, key)
	}
	slices.Sort(keys)
	infos := []uds.ConflictInfo{}
	for _, key := range keys[:min(len(keys), conflictsShownMax)] {
		r, found := c.store.Get([]byte(key))
		if !found {
			continue
		}
		infos = append(infos, uds.ConflictInfo{Key: key, Digest: hex64(r.DotDigest()), Values: c.entryValues(key, r)})
	}
	return infos
}

// derivedAlarms are conditions, not events: they vanish with their cause.
func (c *Cell) derivedAlarms(workloads []uds.WorkloadStatus) []uds.Alarm {
	var alarms []uds.Alarm
	add := func(severity, text, hint string) {
		alarms = append(alarms, uds.Alarm{Severity: severity, Text: text, Hint: hint})
	}
	if n := len(c.views.conflicts); n > conflictsShownMax {
		add("critical", fmt.Sprintf("%d keys are in CONFLICT; %d are shown", n, conflictsShownMax), "")
	}
	if c.store.Degraded() {
		add("critical", "the store of this cell is full: it runs nothing until keys are deleted", "raise --keys-max")
	}
	if waited := c.now.Sub(c.boot.since); c.phase == Booting && waited >= bootSilenceShown {
		hint := "check the network and the other cells; is this directory a copy of a machine that still runs?"
		if c.boot.hadSnapshot && !c.boot.joined {
			hint += " It acts alone after " + bootAloneAfter.String()
		}
		add("warning", "no cell of this cluster has answered for "+waited.Round(time.Second).String()+
			": this cell only keeps what runs", hint)
	}
	for _, alarm := range c.runner.hello.Alarms {
		if alarm.Hint == "" {
			alarm.Hint = "find out who changed the state directory; a restart of runnerd ends this alarm"
		}
		add("critical", "runnerd: "+alarm.Text, alarm.Hint)
	}
	c.endAlarms(add)
	c.absenceAlarms(add)
	if c.nat.Restricted() && len(c.nat.Homes()) == 0 && c.members.Len() > 0 {
		add("warning", "a router or firewall keeps strangers from this cell, and no other cell can be its home",
			"make one cell of the cluster reachable: see `colloid netcheck`")
	}
	c.versionAlarms(add)
	for _, id := range c.cellIDs() {
		if view := c.views.cells[id]; view.hasStatus && view.status.Life == state.Dead {
			add("warning", "cell "+id.String()+" is dead", "repair it, or `colloid forget "+id.String()+"`")
		}
	}
	for _, id := range c.cellIDs() {
		if t := &c.views.cells[id].twins; t.twins(c.now) {
			text, hint := t.alarm(id)
			add("critical", text, hint)
		}
		if view := c.views.cells[id]; id != c.config.Self && view.hasContact && view.contact.Flags&state.FlagNarrow != 0 {
			add("critical", "cell "+id.String()+" cannot send full datagrams: a path of it is unusable",
				"raise the MTU of its link or tunnel; its own status names the path")
		}
	}
	for i := range workloads {
		volumeAlarms(&workloads[i], add)
	}
	for _, w := range workloads {
		if w.State == "unsatisfied" || w.State == "invalid" {
			add("warning", w.Key+": "+w.Reason, "colloid explain "+w.Key)
		}
		if w.State == stateFailed { // nobody starts it again: this waits for a person
			add("critical", w.Key+": "+w.Reason, "read its log, then change the workload or delete it")
		}
		if w.State == "held" || w.State == "stalled" {
			add("critical", w.Key+": "+w.Reason, "apply a version that works, or `colloid rollout undo "+w.Key+"`")
		}
		if other := c.namesake(w.Key); other > w.Key { // each pair once
			add("critical", w.Key+" and "+other+" have one name: their instances are mixed up", "delete one of them")
		}
	}
	return alarms
}

// explainReply tells why a workload runs where it runs (SPEC-REVIEW Part 1 section 5.2, D2).
func (c *Cell) explainReply(key string) Response {
	view := c.views.workloads[key]
	if view == nil {
		return Response{Status: uds.NotFound}
	}
	c.freshPlan()
	status := c.workloadStatus(view)
	explanation := uds.Explanation{Key: key, State: status.State, Reason: status.Reason, Notes: status.Notes, Ranking: []uds.RankedCell{}}
	for _, ranked := range c.planner.Explain(view.hash) {
		line := uds.RankedCell{
			Cell: ranked.Cell.String(), Score: hex64(ranked.Score), Placed: ranked.Placed, Verdict: ranked.Verdict,
		}
		if ranked.StandsBy {
			line.Verdict = c.standbyVerdict(view, &ranked)
		}
		if other := c.views.cells[ranked.Cell]; other != nil && other.heldUntil > c.now {
			line.Verdict = heldVerdict(ranked.Placed, ranked.Verdict, other.heldUntil.Sub(c.now))
		}
		for _, instance := range status.Instances {
			if instance.Cell == line.Cell {
				line.Instance = instance.State
				if instance.ExitCode != nil {
					line.Instance = exitText(instance)
				}
				if instance.Reason != "" {
					line.Instance += ": " + instance.Reason
				}
			}
		}
		explanation.Ranking = append(explanation.Ranking, line)
	}
	for _, id := range c.cellIDs() {
		other := c.views.cells[id]
		if other.hasStatus && c.healthOf(other) == healthOut && other.status.Life != state.Gone {
			verdict := "not in placement: " + other.status.Life.String()
			explanation.Ranking = append(explanation.Ranking, uds.RankedCell{Cell: id.String(), Verdict: verdict})
		}
	}
	return document(explanation)
}

// heldVerdict says of a cell that came back from the dead a moment ago what placement makes of it (F64).
func heldVerdict(placed bool, verdict string, left time.Duration) string {
	counts := fmt.Sprintf("died and is back, counts fully in %ds", int((left+time.Second-1)/time.Second))
	if placed {
		return verdict + " as last resort: " + counts
	}
	return counts
}
