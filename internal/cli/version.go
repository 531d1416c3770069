package cli

import (
	"errors"
	"runtime"

	"colloid.net/internal/version"
	"colloid.net/ipc/uds"
	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"
)

// versionDocument is the output of `version -o json`.
type versionDocument struct {
	Version  string          `json:"version"`
	Go       string          `json:"go"`
	Platform string          `json:"platform"`
	Daemon   *uds.HelloReply `json:"daemon,omitempty"`
}

func (a *app) versionCommand() *cobra.Command {
	var format outputFormat
	command := &cobra.Command{
		Use:   "version",
		Short: "Print the versions of this program and of the daemon",
		Args:  cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			document := versionDocument{Version: version.String(), Go: runtime.Version(),
				Platform: runtime.GOOS + "/" + runtime.GOARCH}
			s, silence := a.dial()
			if silence == nil {
				defer s.close()
				var reply *uds.HelloReply
				if reply, silence = s.hello(); silence == nil {
					document.Daemon = reply
				}
			}
			if format == formatJSON {
				return a.printJSON(document)
			}
			a.data("colloid %s (%s, %s)", document.Version, document.Go, document.Platform)
			if document.Daemon == nil {
				if errors.Is(silence, errNoDaemon) || errors.Is(silence, unix.ECONNREFUSED) {
					a.data("meshd not running")
				} else { // it is there and hangs, or does not let this user in
					a.data("meshd not known: %s", silence)
				}
				return nil
			}
			a.data("meshd %s, cell %s, %s", printable(document.Daemon.Version), document.Daemon.Cell,
				printable(document.Daemon.State))
			return nil
		},
	}
	format.register(command)
	return command
}
