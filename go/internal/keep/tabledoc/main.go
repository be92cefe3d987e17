// Command tabledoc prints the keeper's state table as Markdown.
package main

import (
	"os"

	"processguard/go/internal/keep"
)

func main() { os.Stdout.WriteString(keep.Table()) }
