// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"
)

// view holds the flags that select what a command prints, and how often.
type view struct {
	output    string
	noHeaders bool
	namespace string
	interval  time.Duration // 0: print once
}

func (v *view) addFlags(cmd *cobra.Command) { addOutputFlag(cmd, &v.output) }

// addListFlags adds the flags of commands that print a table of many objects.
func (v *view) addListFlags(cmd *cobra.Command) {
	addOutputFlag(cmd, &v.output, "table", "wide", "json", "yaml")
	v.addHeaderFlag(cmd)
	v.addNamespaceFlags(cmd)
	v.addWatch(cmd)
}

func (v *view) addHeaderFlag(cmd *cobra.Command) {
	cmd.Flags().BoolVar(&v.noHeaders, "no-headers", false, "print no column headers")
}

func (v *view) addNamespaceFlags(cmd *cobra.Command) {
	cmd.Flags().StringVarP(&v.namespace, "namespace", "n", "", "only objects in this namespace")
	cmd.Flags().BoolP("all-namespaces", "A", false, "objects in all namespaces; the default, unlike in kubectl")
	exclusive(cmd, "namespace", "all-namespaces")
}

// defaultInterval is the interval of --watch without a value, as in watch(1).
const defaultInterval = 2 * time.Second

func (v *view) addWatch(cmd *cobra.Command) {
	cmd.Flags().DurationVarP(&v.interval, "watch", "w", 0, "print repeatedly until interrupted; the value is the interval")
	cmd.Flags().Lookup("watch").NoOptDefVal = defaultInterval.String()
}

// names reports whether objects of a namespace are shown.
func (v *view) names(namespace string) bool { return v.namespace == "" || v.namespace == namespace }

// of reports whether an object named namespace/name is shown.
func (v *view) of(name string) bool {
	namespace, _, _ := strings.Cut(name, "/")
	return v.names(namespace)
}

// inNamespace returns the namespace/name of an object that is given by its name alone, if --namespace is given.
func (v *view) inNamespace(name string) string {
	if v.namespace == "" || name == "" || strings.Contains(name, "/") {
		return name
	}
	return v.namespace + "/" + name
}

// nothing prints a message to standard error if a namespace has no rows.
func (v *view) nothing(cmd *cobra.Command, rows int, what string) {
	if rows == 0 && v.namespace != "" {
		fmt.Fprintf(cmd.ErrOrStderr(), "no %s in namespace %s\n", what, v.namespace)
	}
}

// show reads and prints, once or repeatedly until the command's context ends. A failed read does not end the
// repetition.
func (v *view) show(cmd *cobra.Command, read func() (value any, table func(io.Writer), err error)) error {
	print := func() error {
		value, table, err := read()
		if err != nil {
			return err
		}
		return write(cmd.OutOrStdout(), v.output, value, table)
	}
	if v.interval == 0 {
		return print()
	}
	if v.interval < 0 {
		return exitError{exitUsage, fmt.Errorf("--watch %s: the interval is negative", v.interval)}
	}
	for ctx := cmd.Context(); ; {
		v.clear(cmd.OutOrStdout())
		if err := print(); errors.Is(err, unix.EPIPE) {
			return nil // the reader has closed the pipe
		} else if err != nil && ctx.Err() == nil {
			fmt.Fprintln(cmd.ErrOrStderr(), "beeline:", err)
		}
		if !wait(ctx, v.interval) {
			return nil
		}
	}
}

func wait(ctx context.Context, interval time.Duration) bool {
	timer := time.NewTimer(interval)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-timer.C:
		return true
	}
}

// clear clears a terminal. In other output it starts a paragraph with the time; JSON and YAML stay a plain
// stream of documents.
func (v *view) clear(w io.Writer) {
	_, err := unix.IoctlGetTermios(int(os.Stdout.Fd()), unix.TCGETS)
	switch {
	case v.output == "yaml":
		fmt.Fprintln(w, "---")
	case v.output == "json":
	case err == nil:
		os.Stdout.WriteString("\x1b[H\x1b[2J") // bypasses the writer that escapes control sequences
	default:
		fmt.Fprintf(w, "\n%s\n", time.Now().Format(time.RFC3339))
	}
}
