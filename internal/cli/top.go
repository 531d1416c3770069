package cli

import (
	"context"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"colloid.net/ipc/attach"
	"colloid.net/ipc/uds"
	"github.com/spf13/cobra"
)

const (
	topInterval = 2 * time.Second
	// topFirst is the time between the two looks that the first rates come from.
	topFirst = time.Second
	// topCells bounds the cells that are asked for the figures of their instances.
	topCells = 60
	// topName stands where streams name a workload: figures are of a whole cell.
	topName = "cell.usage"
)

func (a *app) topCommand() *cobra.Command {
	var format outputFormat
	var once bool
	command := &cobra.Command{
		Use:               "top [WORKLOAD]",
		ValidArgsFunction: a.completeFirst(workloadNames),
		Short:             "Show what cells and workloads use, live",
		Long: `Shows processor, memory, network where a replica has its own, and restarts, of every cell and every replica. On a
terminal it goes on until interrupted; otherwise, with --once and with -o json, it looks twice within a second
and prints one picture. The figures come from the cells themselves, which measure only while somebody looks.`,
		Args: cobra.MaximumNArgs(1),
		RunE: func(command *cobra.Command, arguments []string) error {
			live := isTerminal(a.Output) && !once && format != formatJSON
			ctx, stop := a.out.while(command.Context())
			defer stop()
			a.watches.Store(live)
			return a.with(func(s *session) error {
				t := &top{app: a, usage: map[uint64]*cellUsage{}}
				if len(arguments) > 0 {
					var err error
					if t.only, err = s.fullKey(arguments[0]); err != nil {
						return err
					}
				}
				return t.run(ctx, s, live, format)
			})
		},
	}
	format.register(command)
	command.Flags().BoolVar(&once, "once", false, "print one picture")
	return command
}

// top is one run of the command.
type top struct {
	app     *app
	streams *multiplexer
	only    string // key of the one workload to show

	mutex sync.Mutex
	usage map[uint64]*cellUsage
}

// cellUsage is what one cell said last, and before that.
type cellUsage struct {
	stream      *remote
	last, first *attach.Usage
	problem     string
}

// topPicture is the document of -o json.
type topPicture struct {
	Cells     []topCell     `json:"cells"`
	Instances []topInstance `json:"instances"`
}

type topCell struct {
	Cell          string `json:"cell"`
	Hostname      string `json:"hostname,omitempty"`
	State         string `json:"state"`
	CPUPercent    *int   `json:"cpu_percent,omitempty"`
	MemoryPercent *int   `json:"memory_percent,omitempty"`
	Instances     int    `json:"instances"`
	Problem       string `json:"problem,omitempty"` // why the figures of its instances are missing
}

type topInstance struct {
	Replica       string  `json:"replica"`
	Key           string  `json:"key"`
	Cell          string  `json:"cell"`
	Hostname      string  `json:"hostname,omitempty"`
	State         string  `json:"state"`
	Restarts      int     `json:"restarts"`
	CPUMillicores *int64  `json:"cpu_millicores,omitempty"`
	MemoryBytes   *uint64 `json:"memory_bytes,omitempty"`
	ReceiveRate   *int64  `json:"received_bytes_per_second,omitempty"`
	SendRate      *int64  `json:"sent_bytes_per_second,omitempty"`
}

func (t *top) run(ctx context.Context, s *session, live bool, format outputFormat) (err error) {
	if t.streams, err = dialStreams(s); err != nil {
		return err
	}
	defer t.streams.close()
	status, err := s.status(false)
	if err != nil {
		return err
	}
	s.close() // one connection for each command that stays
	t.ask(status)
	for wait := topFirst + topFirst/2; ; wait = topInterval {
		select {
		case <-ctx.Done():
			if !live {
				return ctx.Err() // nothing was shown
			}
			return nil
		case <-time.After(wait):
		}
		err := t.app.with(func(s *session) (err error) {
			status, err = s.status(false)
			return err
		})
		if err != nil {
			return err
		}
		t.ask(status)
		picture := t.picture(status)
		if format == formatJSON {
			return t.app.printJSON(picture)
		}
		var text strings.Builder
		if err := picture.print(&text); err != nil {
			return err
		}
		if live {
			fmt.Fprint(t.app.Output, "\x1b[H\x1b[2J") // home, clear
		}
		fmt.Fprint(t.app.Output, text.String())
		if !live {
			return nil
		}
	}
}

// ask opens streams to the cells that have none.
func (t *top) ask(status *uds.Status) {
	for n, c := range status.Cells {
		id, err := strconv.ParseUint(c.ID, 16, 64)
		if err != nil || n >= topCells || c.State != "alive" || c.Unreached || c.Instances == 0 {
			continue
		}
		t.mutex.Lock()
		known := t.usage[id]
		if known == nil {
			known = &cellUsage{}
			t.usage[id] = known
		}
		open := known.stream != nil
		t.mutex.Unlock()
		if open {
			continue
		}
		request := &attach.Request{IntervalMilliseconds: uint32(topFirst.Milliseconds())}
		stream, err := t.streams.open(uds.StreamMetrics, id, topName, nil, request)
		t.mutex.Lock()
		if err != nil {
			known.problem = streamTrouble(err)
		} else {
			known.stream = stream
			go t.read(known, stream)
		}
		t.mutex.Unlock()
	}
}

func (t *top) read(into *cellUsage, stream *remote) {
	reader := attach.NewReader(stream)
	for {
		kind, payload, err := next(reader)
		var usage *attach.Usage
		if err == nil && kind == attach.KindUsage {
			usage, err = attach.ParseUsage(payload)
		}
		t.mutex.Lock()
		switch {
		case err != nil:
			into.problem, into.stream, into.first, into.last = streamTrouble(err), nil, nil, nil
		case usage != nil:
			into.first, into.last, into.problem = into.last, usage, ""
		}
		t.mutex.Unlock()
		if err != nil {
			stream.Close()
			return
		}
	}
}

// picture joins the status with the figures.
func (t *top) picture(status *uds.Status) *topPicture {
	t.mutex.Lock()
	defer t.mutex.Unlock()
	p := &topPicture{Cells: []topCell{}, Instances: []topInstance{}}
	for _, c := range status.Cells {
		id, _ := strconv.ParseUint(c.ID, 16, 64)
		row := topCell{
			Cell: c.ID, Hostname: c.Hostname, State: lifeOf(&c), CPUPercent: c.CPUPercent, MemoryPercent: c.MemoryPercent,
			Instances: c.Instances,
		}
		if u := t.usage[id]; u != nil {
			row.Problem = u.problem
		}
		p.Cells = append(p.Cells, row)
	}
	for _, w := range status.Workloads {
		if t.only != "" && t.only != w.Key {
			continue
		}
		for index, info := range w.Instances {
			r := replica{key: w.Key, index: index, info: info}
			row := topInstance{
				Replica: r.name(), Key: w.Key, Cell: info.Cell, State: info.State, Restarts: info.Restarts,
			}
			old := true
			for _, c := range status.Cells {
				if c.ID == info.Cell {
					row.Hostname, old = c.Hostname, c.State != "alive" && c.State != "leaving" || c.Unreached
				}
			}
			if u := t.usage[r.cellID()]; u != nil && !old {
				row.figures(&r, u)
			}
			p.Instances = append(p.Instances, row)
		}
	}
	slices.SortStableFunc(p.Instances, func(a, b topInstance) int { return int(b.millicores() - a.millicores()) })
	return p
}

func (i *topInstance) millicores() int64 {
	if i.CPUMillicores == nil {
		return -1
	}
	return *i.CPUMillicores
}

func findUsage(u *attach.Usage, r *replica) *attach.InstanceUsage {
	if u == nil {
		return nil
	}
	for i := range u.Instances {
		one := &u.Instances[i]
		if one.Key == r.key && int(one.Slot) == r.info.Slot && one.Digest == r.info.Digest {
			return one
		}
	}
	return nil
}

// figures fills in what the cell of a replica said of it, rates from two looks at the same process.
func (i *topInstance) figures(r *replica, u *cellUsage) {
	now, before := findUsage(u.last, r), findUsage(u.first, r)
	if now == nil {
		return
	}
	i.MemoryBytes = now.MemoryBytes
	if before == nil || before.PID != now.PID {
		return
	}
	milliseconds := u.last.UnixMilliseconds - u.first.UnixMilliseconds
	rate := func(a, b *uint64, per int64) *int64 {
		if a == nil || b == nil || *b < *a || milliseconds <= 0 {
			return nil
		}
		n := int64(*b-*a) * per / milliseconds
		return &n
	}
	i.CPUMillicores = rate(before.CPUMicroseconds, now.CPUMicroseconds, 1)
	i.ReceiveRate = rate(before.ReceivedBytes, now.ReceivedBytes, 1000)
	i.SendRate = rate(before.SentBytes, now.SentBytes, 1000)
}

func (p *topPicture) print(w io.Writer) error {
	percent := func(n *int) string {
		if n == nil {
			return "-"
		}
		return fmt.Sprintf("%d%%", *n)
	}
	t := newTable(w, "CELL", "HOST", "STATE", "CPU", "MEMORY", "INSTANCES")
	for _, c := range p.Cells {
		t.row(shortID(c.Cell), orDash(c.Hostname), c.State, percent(c.CPUPercent), percent(c.MemoryPercent), fmt.Sprint(c.Instances))
	}
	if err := t.flush(); err != nil {
		return err
	}
	fmt.Fprintln(w)
	t = newTable(w, "REPLICA", "HOST", "STATE", "CPU", "MEMORY", "RECEIVED", "SENT", "RESTARTS")
	for _, i := range p.Instances {
		host := i.Hostname
		if host == "" {
			host = shortID(i.Cell)
		}
		processor, memory := "-", "-"
		if i.CPUMillicores != nil {
			processor = fmt.Sprintf("%dm", *i.CPUMillicores)
		}
		if i.MemoryBytes != nil {
			memory = fmt.Sprintf("%.1f MiB", float64(*i.MemoryBytes)/(1<<20))
		}
		t.row(i.Replica, host, i.State, processor, memory, perSecond(i.ReceiveRate), perSecond(i.SendRate), fmt.Sprint(i.Restarts))
	}
	if err := t.flush(); err != nil {
		return err
	}
	for _, c := range p.Cells {
		if c.Problem != "" {
			fmt.Fprintf(w, "no figures of %s: %s\n", orDash(printable(c.Hostname)), printable(c.Problem))
		}
	}
	return nil
}

func perSecond(rate *int64) string {
	switch {
	case rate == nil:
		return "-"
	case *rate >= 10<<20:
		return fmt.Sprintf("%.1f MiB/s", float64(*rate)/(1<<20))
	case *rate >= 10<<10:
		return fmt.Sprintf("%.1f KiB/s", float64(*rate)/(1<<10))
	}
	return fmt.Sprintf("%d B/s", *rate)
}
