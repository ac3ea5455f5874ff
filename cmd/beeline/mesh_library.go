// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"

	"github.com/spf13/cobra"

	"beeline.io/beeline/internal/offline"
)

func newMeshInstallLibraryCommand() *cobra.Command {
	var from string
	cmd := &cobra.Command{
		Use: "install-library DIR", Short: "Copy the host stack's library into a directory",
		Long: `Copies ` + offline.LibraryName + `, which programs get by LD_PRELOAD, into a directory that
exists: a volume of a pod, in an init container with Beeline's image. A former copy is
replaced at once, and programs that use it keep it. It needs no agent and no privileges
but to write there; the root file system may be read-only.`,
		Args: usage(cobra.ExactArgs(1)),
		RunE: func(cmd *cobra.Command, args []string) error {
			path, size, err := offline.InstallLibrary(from, args[0])
			if err != nil {
				return err
			}
			_, err = fmt.Fprintf(cmd.OutOrStdout(), "installed %s, %d bytes\n", path, size)
			return err
		},
	}
	cmd.Flags().StringVar(&from, "from", offline.LibraryPath, "library to copy")
	return cmd
}
