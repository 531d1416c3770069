package cli

import (
	"fmt"
	"io"
	"time"

	"colloid.net/ipc/uds"
	"github.com/spf13/cobra"
)

// netcheckDocument is what `netcheck -o json` prints.
type netcheckDocument struct {
	Network uds.NetworkInfo `json:"network"`
	Peers   []uds.CellInfo  `json:"peers"`
}

func (a *app) netcheckCommand() *cobra.Command {
	var format outputFormat
	command := &cobra.Command{
		Use:   "netcheck",
		Short: "Show what stands between this machine and the others",
		Long: `Shows whether strangers reach this machine, what its router does with its datagrams, which cells
relay for it, and the way to every other cell: direct, punched (through a hole in a router that both sides
keep open; "by search" if it took many sockets to find one) or relayed, with its age and round trip.`,
		Args: cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			return a.with(func(s *session) error {
				status, err := s.status(false)
				if err != nil {
					return err
				}
				document := netcheckDocument{Network: status.Network, Peers: []uds.CellInfo{}}
				for _, cell := range status.Cells {
					if !cell.Self && cell.State != "gone" {
						document.Peers = append(document.Peers, cell)
					}
				}
				if format == formatJSON {
					return a.printJSON(document)
				}
				return printNetcheck(a.Output, document)
			})
		},
	}
	format.register(command)
	return command
}

func printNetcheck(w io.Writer, d netcheckDocument) error {
	n := d.Network
	fmt.Fprintf(w, "reach     %s (%s): %s\n", printable(n.Reach), printable(n.Scope), reachMeaning(n))
	fmt.Fprintf(w, "router    %s\n", routerMeaning(n))
	if n.Observed != "" {
		fmt.Fprintf(w, "seen as   %s\n", printable(n.Observed))
	}
	for _, address := range n.Mapped {
		fmt.Fprintf(w, "opened    %s, by the router on request\n", printable(address))
	}
	for _, candidate := range n.Candidates {
		if candidate.Address != n.Observed {
			fmt.Fprintf(w, "address   %s\n", printable(candidate.Address))
		}
	}
	if len(n.Homes) == 0 && n.Reach == "relayed" {
		fmt.Fprintln(w, "home      none: no public cell answers, so nobody reaches this one")
	}
	for _, home := range n.Homes {
		heard := "not heard"
		if home.HeardSeconds >= 0 {
			heard = fmt.Sprintf("heard %.1fs ago", home.HeardSeconds)
		}
		fmt.Fprintf(w, "home      %s %s, %s\n", printable(home.Cell), orDash(home.Hostname), heard)
	}
	fmt.Fprintln(w)
	if len(d.Peers) == 0 {
		fmt.Fprintln(w, "no other cell yet: colloid connect HOST")
		return nil
	}
	t := newTable(w, "CELL", "HOST", "REACH", "PATH", "AGE", "RTT", "ATTEMPTS", "ADDRESS")
	for _, c := range d.Peers {
		age := "-"
		if c.PathSeconds > 0 {
			age = time.Duration(c.PathSeconds * float64(time.Second)).Round(time.Second).String()
		}
		t.row(c.ID, orDash(c.Hostname), orDash(c.Reach), describePath(c), age, describeRTT(c),
			fmt.Sprint(c.PathAttempts), c.Address)
	}
	return t.flush()
}

func reachMeaning(n uds.NetworkInfo) string {
	switch n.Reach {
	case "public":
		return "strangers reach this cell"
	case "punched":
		return "others reach this cell after both have sent"
	case "relayed":
		return "others reach this cell through its homes, unless their own router keeps one port"
	}
	return "not known yet: it takes other cells to find out"
}

func routerMeaning(n uds.NetworkInfo) string {
	mapping := map[string]string{
		"none": "does not translate addresses", "one-port": "gives this cell one port for all destinations",
		"per-destination": "gives this cell another port for each destination",
	}[n.Mapping]
	if mapping == "" && n.Filter != "open" && n.Filter != "closed" {
		return "not known yet"
	}
	if mapping == "" {
		mapping = "translates in a way that is not known yet"
	}
	filter := map[string]string{"open": "lets strangers in", "closed": "keeps strangers out"}[n.Filter]
	if filter == "" {
		filter = "may or may not let strangers in"
	}
	return mapping + ", " + filter
}

// describePath says how a cell is reached, with the relay, and whether it took many sockets to find the way.
func describePath(c uds.CellInfo) string {
	if c.Path == "punched" && c.PathSearched {
		return "punched by search"
	}
	if c.Path == "relayed" && len(c.Relay) >= 8 {
		return "relayed via " + c.Relay[:8]
	}
	return orDash(c.Path)
}

func describeRTT(c uds.CellInfo) string {
	if c.RTTMicrosecond <= 0 {
		return "-"
	}
	return (time.Duration(c.RTTMicrosecond) * time.Microsecond).Round(10 * time.Microsecond).String()
}
