package cli

import (
	"strings"
	"testing"

	"colloid.net/ipc/uds"
)

// listOf is a status with the replicas of spread.web: "a1" runs on cell a with digest 1, "b1?" does not
// answer.
func listOf(text string) *uds.Status {
	w := uds.WorkloadStatus{Key: "spread.web"}
	for _, word := range strings.Fields(text) {
		info := uds.InstanceInfo{Cell: word[:1], Digest: word[1:2], State: "ready"}
		if strings.HasSuffix(word, "?") {
			info.State = "unreachable"
		}
		w.Instances = append(w.Instances, info)
	}
	return &uds.Status{Workloads: []uds.WorkloadStatus{w}}
}

// A replica that was named by its number is followed as such, whatever its number becomes, and then whoever
// took its place: never another one that was there all the time. Each step is a list, what is followed
// then, and what is said.
func TestFollowedReplicaIsOneAndItsSuccessors(t *testing.T) {
	for name, steps := range map[string][]string{
		"its number changes":                  {"a1 c1", "1", "a1 b1 c1 = c1 web/1 is now web/2", "a1 c1 = c1 web/2 is now web/1", "a1 c1 = c1"},
		"its cell dies":                       {"a1 c1", "0", "a1? c1 = a1", "a1? b1 c1 = b1 web/0 goes on as web/1 on b", "b1 c1 = b1 web/1 is now web/0"},
		"its cell comes back":                 {"a1 c1", "0", "a1? c1 = a1", "a1 c1 = a1"},
		"its cell comes back too late":        {"a1 c1", "0", "a1? b1 c1 = b1 web/0 goes on as web/1 on b", "a1 b1 c1 = b1", "a1 c1 = a1 web/1 goes on as web/0 on a", "a1 c1 = a1"},
		"another cell dies":                   {"a1 c1", "0", "a1 b1 c1? = a1", "a1 b1 = a1", "a1? b1 = a1"},
		"it is updated":                       {"a1 c1", "1", "a1 c1 c2 = c1", "a1 c2 = c2 web/1 goes on as web/1 on c", "a2 c2 = c2"},
		"it is being updated already":         {"a1 c1 c2", "1", "a1 c2 = c2 web/1 goes on as web/1 on c", "a2 c2 = c2"},
		"it is updated to another cell":       {"a1 c1", "1", "a1 b2 c1 = c1 web/1 is now web/2", "a1 b2 = b2 web/2 goes on as web/1 on b"},
		"it is one too many":                  {"a1 b1 c1", "2", "a1 b1 = - web/2 has gone: waiting for another one in its place", "a1 b1 = -", "a1 b1 d1 = d1 web/2 goes on as web/2 on d"},
		"it is one too many, and comes again": {"a1 b1", "1", "a1 = - web/1 has gone: waiting for another one in its place", "a1 b1 = b1 web/1 is now web/1"},
	} {
		status := listOf(steps[0])
		r, err := parseReference("web/" + steps[1])
		if err != nil {
			t.Fatal(err)
		}
		found, err := r.find(status, "spread.web")
		if err != nil {
			t.Fatal(err)
		}
		c := newChain(&found[0], "spread.web", status)
		for _, step := range steps[2:] {
			list, want, _ := strings.Cut(step, " = ")
			want, said, _ := strings.Cut(want, " ")
			followed, remark := c.next(listOf(list))
			got := "-"
			if followed != nil {
				got = followed.info.Cell + followed.info.Digest
			}
			if got != want || remark != said {
				t.Errorf("%s: after %q: %s, %q, expected %s, %q", name, list, got, remark, want, said)
			}
		}
	}
}
