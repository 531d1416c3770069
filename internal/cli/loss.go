package cli

import (
	"colloid.net/ipc/uds"
	"github.com/spf13/cobra"
)

func (a *app) acceptLossCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "accept-loss",
		Short: "Go on without configuration that a damaged disk took",
		Long: `A cell whose state files are damaged or missing stops and starts nothing, lets nobody in and takes no
configuration, until another cell of its cluster has given it the state. Where no other cell is left and there is no
backup of the file that "colloid status" names, this command says that what the cell still has is all there is: what
runs here and is in no configuration is stopped then. Read "colloid status" first.`,
		Args: cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			return a.with(func(s *session) error {
				if err := s.explain("accept-loss", s.call(uds.CodeAcceptLoss, nil, nil)); err != nil {
					return err
				}
				a.data("this cell goes on with what it has")
				return nil
			})
		},
	}
}
