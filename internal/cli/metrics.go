package cli

import (
	"bufio"
	"fmt"
	"io"
	"strconv"
	"strings"

	"colloid.net/ipc/uds"
)

// writeMetrics prints the daemon's metrics in the Prometheus text format, version 0.0.4, and those
// that follow from the rest of the status. A metric whose name the format does not allow is left
// out: a broken line would make the whole answer unreadable.
func writeMetrics(w io.Writer, status *uds.Status) error {
	b := bufio.NewWriter(w)
	seen := map[string]bool{}
	for _, m := range append(derivedMetrics(status), status.Metrics...) {
		if !validMetricName(m.Name) || seen[m.Name] {
			continue
		}
		seen[m.Name] = true
		writeHead(b, m.Name, m.Help, m.Kind)
		fmt.Fprintf(b, "%s %s\n", m.Name, formatNumber(m.Value))
	}
	writeWorkloadMetrics(b, status.Workloads)
	return b.Flush()
}

func derivedMetrics(status *uds.Status) []uds.Metric {
	alive := 0
	for _, c := range status.Cells {
		if c.State == "alive" {
			alive++
		}
	}
	needsHuman := 0.0
	if status.NeedsHuman {
		needsHuman = 1
	}
	gauge := func(name, help string, value float64) uds.Metric {
		return uds.Metric{Name: name, Help: help, Kind: "gauge", Value: value}
	}
	return []uds.Metric{
		gauge("colloid_cells", "Members of the cluster, dead ones included.", float64(len(status.Cells))),
		gauge("colloid_cells_alive", "Members that this cell believes alive.", float64(alive)),
		gauge("colloid_conflicts", "Keys with concurrent values.", float64(len(status.Conflicts))),
		gauge("colloid_needs_human", "1 when something waits for a person.", needsHuman),
		gauge("colloid_uptime_seconds", "Time since meshd started.", float64(status.Cell.UptimeSeconds)),
	}
}

func writeWorkloadMetrics(b *bufio.Writer, workloads []uds.WorkloadStatus) {
	if len(workloads) == 0 {
		return
	}
	writeHead(b, "colloid_workload_replicas", "Instances that the configuration asks for.", "gauge")
	for _, l := range workloads {
		fmt.Fprintf(b, "colloid_workload_replicas{key=\"%s\"} %d\n", escapeLabel(l.Key), l.Replicas)
	}
	writeHead(b, "colloid_workload_ready", "Instances that answer.", "gauge")
	for _, l := range workloads {
		fmt.Fprintf(b, "colloid_workload_ready{key=\"%s\"} %d\n", escapeLabel(l.Key), l.Ready)
	}
}

func writeHead(b *bufio.Writer, name, help, kind string) {
	if kind != "counter" && kind != "gauge" {
		kind = "untyped"
	}
	fmt.Fprintf(b, "# HELP %s %s\n# TYPE %s %s\n", name,
		strings.NewReplacer(`\`, `\\`, "\n", `\n`).Replace(help), name, kind)
}

func formatNumber(v float64) string { return strconv.FormatFloat(v, 'g', -1, 64) }

func escapeLabel(text string) string {
	return strings.NewReplacer(`\`, `\\`, "\n", `\n`, `"`, `\"`).Replace(text)
}

func validMetricName(name string) bool {
	for i, c := range []byte(name) {
		letter := c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c == '_' || c == ':'
		if !letter && (i == 0 || c < '0' || c > '9') {
			return false
		}
	}
	return name != ""
}
