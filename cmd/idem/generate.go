package main

import (
	"fmt"
	"os"

	"github.com/spf13/cobra"
	"github.com/spf13/cobra/doc"
)

func newCompletion() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "completion {bash|zsh|fish}",
		Short: "Print the completion script of a shell",
		Long: `Prints the script that makes a shell complete the commands, flags and states of
idem. The script asks idem; nothing else has to be kept up to date.`,
		Example: `  source <(idem completion bash)
  idem completion zsh > "${fpath[1]}/_idem"
  idem completion fish > ~/.config/fish/completions/idem.fish`,
		ValidArgs: []string{"bash", "zsh", "fish"},
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) != 1 {
				return wrongCall(cmd, "idem: name one shell: bash, zsh or fish")
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			var script func() error
			switch root := cmd.Root(); args[0] {
			case "bash":
				script = func() error { return root.GenBashCompletionV2(os.Stdout, true) }
			case "zsh":
				script = func() error { return root.GenZshCompletion(os.Stdout) }
			case "fish":
				script = func() error { return root.GenFishCompletion(os.Stdout, true) }
			default:
				return wrongCall(cmd, "idem: there is no completion for %q; there is one for bash, zsh and fish", args[0])
			}
			return script()
		},
	}
	return cmd
}

func newMan() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "man DIRECTORY",
		Short: "Write the man pages",
		Long: `Writes one man page a command into a folder, which is created if it is not there:
idem.1, idem-run.1 and so on. Pages of that name are replaced.`,
		Example: `  idem man /usr/local/share/man/man1
  idem man . && man ./idem-run.1`,
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) != 1 {
				return wrongCall(cmd, "idem: name the folder for the man pages")
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := os.MkdirAll(args[0], 0o755); err != nil {
				return wrongCall(cmd, "idem: the folder for the man pages cannot be made: %w", err)
			}
			root := cmd.Root()
			root.DisableAutoGenTag = true
			header := &doc.GenManHeader{Section: "1", Source: "idem", Manual: "idem"}
			if err := doc.GenManTree(root, header, args[0]); err != nil {
				return fmt.Errorf("idem: the man pages could not be written: %w", err)
			}
			return nil
		},
	}
	return cmd
}
