package cell

import (
	"fmt"
	"strings"

	"colloid.net/ipc/uds"
	"colloid.net/workload"
)

// States of instances that ended and that their restart policy does not start again.
const (
	stateEnded  = "ended"  // with exit code 0
	stateFailed = "failed" // otherwise
)

// endedState judges a workload by its instances that have ended for good. ok is false while that says nothing
// of the workload as a whole: one failure is said at once, success only when every replica has come to it.
func endedState(status *uds.WorkloadStatus) (name, reason string, ok bool) {
	ended := 0
	for _, instance := range status.Instances {
		if !instance.Placed || instance.Digest != status.Digest {
			continue
		}
		switch instance.State {
		case stateFailed:
			return stateFailed, fmt.Sprintf("%s on cell %s%s, is not started again", exitText(instance), instance.Cell,
				whyUnknown(instance)), true
		case stateEnded:
			ended++
		}
	}
	if ended > 0 && ended+status.Ready >= status.Replicas {
		return stateEnded, "", true
	}
	return "", "", false
}

// exitText says how an instance ended.
func exitText(instance uds.InstanceInfo) string {
	switch {
	case instance.ExitCode == nil || *instance.ExitCode < 0:
		return "ended, exit code unknown"
	case *instance.ExitCode == 0:
		return "ended (exit 0)"
	}
	return fmt.Sprintf("failed (exit %d)", *instance.ExitCode)
}

// whyUnknown is the reason of an instance that has no exit code: it never ran, or was killed, and no log of its own says why.
func whyUnknown(instance uds.InstanceInfo) string {
	reason := strings.TrimSuffix(instance.Reason, textNotAgain)
	if reason == "" || instance.ExitCode != nil && *instance.ExitCode >= 0 {
		return ""
	}
	return ": " + reason
}

// textNotAgain ends the reason of an instance of this cell that has ended for good.
const textNotAgain = ", is not started again"

// workloadNotes says what of a specification nobody enforces: a number in a file must not be taken for a wall.
func workloadNotes(spec *workload.Spec) []string {
	if spec == nil || spec.DiskMiB == 0 || spec.Runtime != workload.RuntimeProcess {
		return nil
	}
	return []string{fmt.Sprintf("disk limit of %d MiB not enforced: it only counts in placement", spec.DiskMiB)}
}
