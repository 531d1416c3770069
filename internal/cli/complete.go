package cli

import (
	"fmt"
	"strings"

	"colloid.net/ipc/uds"
	"github.com/spf13/cobra"
)

// completeFirst offers for the first argument, and nothing for those behind it, what names gives for the
// present status.
func (a *app) completeFirst(names func(*uds.Status) []string) cobra.CompletionFunc {
	return func(_ *cobra.Command, arguments []string, prefix string) ([]cobra.Completion, cobra.ShellCompDirective) {
		if len(arguments) > 0 {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		var found []cobra.Completion
		err := a.with(func(s *session) error {
			status, err := s.status(false)
			if err != nil {
				return err
			}
			for _, name := range names(status) {
				if strings.HasPrefix(name, prefix) && printable(name) == name {
					found = append(found, name)
				}
			}
			return nil
		})
		if err != nil {
			return nil, cobra.ShellCompDirectiveError
		}
		return found, cobra.ShellCompDirectiveNoFileComp
	}
}

// cellNames are the ids of the other cells and of this one: host names need not be unique.
func cellNames(status *uds.Status) (names []string) {
	for i := range status.Cells {
		names = append(names, status.Cells[i].ID)
	}
	return names
}

// workloadNames are keys; everything that wants a workload takes them.
func workloadNames(status *uds.Status) (names []string) {
	for i := range status.Workloads {
		names = append(names, status.Workloads[i].Key)
	}
	return names
}

// replicaNames are what exec takes: keys with a number.
func replicaNames(status *uds.Status) (names []string) {
	for i := range status.Workloads {
		w := &status.Workloads[i]
		for number := range w.Instances {
			names = append(names, fmt.Sprintf("%s/%d", w.Key, number))
		}
	}
	return names
}

// workloadAndReplicaNames are what logs takes.
func workloadAndReplicaNames(status *uds.Status) []string {
	return append(workloadNames(status), replicaNames(status)...)
}
