package cli

import (
	"encoding/hex"
	"fmt"
	"strconv"
	"strings"

	"colloid.net/ipc/uds"
	"colloid.net/workload"
)

// counted is a number of things. what is the word for one of them, which takes an s for several.
func counted(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return strconv.Itoa(n) + " " + what + "s"
}

// liveValues are the entries that are not deletions.
func liveValues(entries *uds.Entries) []uds.EntryValue {
	var live []uds.EntryValue
	for _, v := range entries.Entries {
		if !v.Deleted {
			live = append(live, v)
		}
	}
	return live
}

// inConflict reports whether concurrent values wait for a person.
func inConflict(entries *uds.Entries) bool { return len(entries.Entries) > 1 }

// expectation is the number with which a write says what it has seen (F55).
func expectation(entries *uds.Entries) (uint64, error) {
	if len(entries.Entries) == 0 && entries.Digest == "" {
		return uds.ExpectAbsent, nil
	}
	digest, err := strconv.ParseUint(entries.Digest, 16, 64)
	if err != nil || digest == uds.ExpectAny {
		return 0, fail(ExitError, "%s: the daemon sent the digest %q: are colloid and meshd of one version?",
			entries.Key, printable(entries.Digest))
	}
	return digest, nil
}

// describeValue shows one value on one line.
func describeValue(key string, v uds.EntryValue) string {
	if v.Deleted {
		return "deleted"
	}
	if _, _, ok := workload.SplitKey(key); ok {
		if spec, err := workload.Decode(v.Value); err == nil {
			return printable(workload.Summary(spec))
		}
		return fmt.Sprintf("%d bytes that are no valid specification", len(v.Value))
	}
	if v.Text != "" {
		return printable(v.Text)
	}
	return hex.EncodeToString(v.Value)
}

// describeValues shows each of the values of a key on one line. Workloads show in what they differ.
func describeValues(key string, values []uds.EntryValue) []string {
	texts := make([]string, len(values))
	specs := make([]*workload.Spec, len(values))
	for i, v := range values {
		texts[i] = describeValue(key, v)
		if _, _, ok := workload.SplitKey(key); ok && !v.Deleted {
			specs[i], _ = workload.Decode(v.Value)
		}
	}
	for i, text := range workload.Summaries(specs) {
		if text != "" {
			texts[i] = printable(text)
		}
	}
	return texts
}

// dotOf names the write that made a value: its cell and that cell's count.
func dotOf(v uds.EntryValue) string { return fmt.Sprintf("%s:%d", v.Actor, v.Sequence) }

// formatValue shows a value in full, as configuration text if it is a workload.
func formatValue(key string, v uds.EntryValue) (string, error) {
	if _, _, ok := workload.SplitKey(key); !ok {
		return describeValue(key, v) + "\n", nil
	}
	spec, err := workload.Decode(v.Value)
	if err != nil {
		return "", fmt.Errorf("%s: %w", key, err)
	}
	return workload.Format(key, spec), nil
}

// commented turns a text into comment lines of the configuration language.
func commented(text string) string {
	var b strings.Builder
	for line := range strings.Lines(text) {
		b.WriteString("# " + strings.TrimRight(line, "\n") + "\n")
	}
	return b.String()
}
