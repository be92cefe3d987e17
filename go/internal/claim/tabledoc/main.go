// Command tabledoc prints the claim table as Markdown.
package main

import (
	"os"

	"processguard/go/internal/claim"
)

func main() { os.Stdout.WriteString(claim.Table()) }
