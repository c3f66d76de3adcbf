"""Runs tests against code that it does not trust, inside a jar.

    host ──stdin: tests, code, a secret──► suite (trusted)  ──questions──► candidate (the code under test)
         ◄──stdout: verdicts, with the secret──             ◄──answers, callbacks──

Two processes of one jar. The candidate's is forked before the suite has read anything, so there is nothing
of the tests in its memory, and nothing of them is ever on a disk. The suite is undumpable: its memory and
its descriptors are out of reach for a process of the same user. `import solution` in a test gives proxies.
What is plain data crosses by value and is compared in the suite; anything else stays where it is and is
asked by name. The candidate can lie in its answers, which is only to answer wrongly. It can kill the suite,
and then the test that was under way has failed.

Sent into the jar as text: standard library only, and Python 3.10.
"""
