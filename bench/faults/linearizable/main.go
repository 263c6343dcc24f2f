// Command linearizable checks histories of the workload `register` by Porcupine: linearizable FILE.jsonl ...
package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"math"
	"os"

	"github.com/anishathalye/porcupine"
)

type event struct {
	Index   int64           `json:"index"`
	Process json.RawMessage `json:"process"`
	Type    string          `json:"type"`
	F       string          `json:"f"`
	Value   *int            `json:"value"`
}

type input struct {
	write bool
	value int
}

var register = porcupine.Model{
	Init: func() interface{} { return 0 },
	Step: func(state, in, out interface{}) (bool, interface{}) {
		call := in.(input)
		if call.write {
			return true, call.value
		}
		return out.(int) == state.(int), state
	},
}

func operations(name string) ([]porcupine.Operation, error) {
	file, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	begun := map[string]event{}
	clients := map[string]int{}
	found := []porcupine.Operation{}
	lines := bufio.NewScanner(file)
	lines.Buffer(make([]byte, 1<<20), 1<<26)
	add := func(first event, last int64, value int) {
		process := string(first.Process)
		if _, known := clients[process]; !known {
			clients[process] = len(clients)
		}
		call := input{write: first.F == "write", value: value}
		found = append(found, porcupine.Operation{ClientId: clients[process], Input: call, Call: first.Index, Output: value, Return: last})
	}
	for lines.Scan() {
		var each struct {
			event
			Value json.RawMessage `json:"value"`
		}
		if err := json.Unmarshal(lines.Bytes(), &each); err != nil {
			return nil, err
		}
		if each.F != "read" && each.F != "write" {
			continue
		}
		process := string(each.Process)
		var value *int
		if err := json.Unmarshal(each.Value, &value); err != nil {
			return nil, err
		}
		each.event.Value = value
		if each.Type == "invoke" {
			begun[process] = each.event
			continue
		}
		first := begun[process]
		delete(begun, process)
		if each.Type == "ok" {
			add(first, each.Index, *value)
		} else if each.Type == "info" {
			add(first, math.MaxInt64, *first.Value)
		}
	}
	for _, first := range begun {
		if first.F == "write" {
			add(first, math.MaxInt64, *first.Value)
		}
	}
	return found, lines.Err()
}

func main() {
	bad := 0
	for _, name := range os.Args[1:] {
		found, err := operations(name)
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(2)
		}
		verdict := "linearizable"
		if !porcupine.CheckOperations(register, found) {
			verdict, bad = "NOT linearizable", bad+1
		}
		fmt.Printf("%s: %d operations, %s\n", name, len(found), verdict)
	}
	if bad > 0 {
		os.Exit(1)
	}
}
