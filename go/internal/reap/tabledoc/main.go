// Command tabledoc prints the reaper's state tables as Markdown.
package main

import (
	"os"

	"processguard/go/internal/reap"
)

func main() { os.Stdout.WriteString(reap.Table()) }
