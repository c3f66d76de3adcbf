"""The tables, as the list of steps that made them what they are.

The list only ever grows: a step that was released is never changed. Words in braces are types; each
database says what it calls them.
"""

from __future__ import annotations

MIGRATIONS: tuple[tuple[str, ...], ...] = (
    (
        """
        CREATE TABLE sandbox_execs (
            exec_id {text} PRIMARY KEY,
            epoch {text} NOT NULL,
            request_id {text} NOT NULL,
            request_digest {text} NOT NULL,
            project_id {text} NOT NULL,
            status {text} NOT NULL,
            accepted_at {time} NOT NULL,
            token_id {text} NOT NULL,
            role {text},
            tool {text},
            skill_id {text},
            task_id {text},
            conversation_id {text},
            session_id {text},
            agent_id {text},
            org_id {text},
            language {text},
            image {text},
            cmd {text},
            args {json} NOT NULL,
            cwd {text} NOT NULL,
            env_keys {json} NOT NULL,
            code_hash {text},
            inputs {json} NOT NULL,
            policy_snapshot {json} NOT NULL,
            grant_digest {text} NOT NULL,
            risk {json} NOT NULL,
            engine {text} NOT NULL,
            posture {text} NOT NULL,
            started_at {time},
            ended_at {time},
            duration_ms {integer},
            verdict {text},
            exit_code {integer},
            signal {integer},
            error_code {text},
            error_reason {text},
            stdout_bytes {integer} NOT NULL,
            stderr_bytes {integer} NOT NULL,
            stdout_truncated {boolean} NOT NULL,
            stderr_truncated {boolean} NOT NULL,
            stdout_sha256 {text},
            stderr_sha256 {text},
            usage {json} NOT NULL,
            artifacts_path {text},
            artifacts {json} NOT NULL,
            skipped {json} NOT NULL,
            files_read {json} NOT NULL,
            files_written {json} NOT NULL,
            network_bytes_sent {integer} NOT NULL,
            network_bytes_recv {integer} NOT NULL,
            receipt_hash {text},
            UNIQUE (project_id, request_id)
        )
        """,
        """
        CREATE TABLE receipts (
            number {integer} PRIMARY KEY,
            exec_id {text} NOT NULL UNIQUE REFERENCES sandbox_execs (exec_id),
            body {bytes} NOT NULL,
            hash {text} NOT NULL,
            signature {bytes} NOT NULL
        )
        """,
    ),
    (
        "CREATE INDEX execs_by_time ON sandbox_execs (accepted_at, exec_id)",
        "CREATE INDEX execs_by_project ON sandbox_execs (project_id, accepted_at, exec_id)",
        "CREATE INDEX execs_by_status ON sandbox_execs (status, accepted_at, exec_id)",
        """
        CREATE INDEX execs_by_task ON sandbox_execs (task_id, accepted_at, exec_id)
            WHERE task_id IS NOT NULL
        """,
        """
        CREATE INDEX execs_by_skill ON sandbox_execs (skill_id, accepted_at, exec_id)
            WHERE skill_id IS NOT NULL
        """,
    ),
    ("ALTER TABLE sandbox_execs ADD COLUMN error_field {text}",),
    (
        """
        CREATE TABLE matters (
            kind {text} NOT NULL,
            id {text} NOT NULL,
            project_id {text} NOT NULL,
            state {text} NOT NULL,
            created_at {time} NOT NULL,
            body {json} NOT NULL,
            PRIMARY KEY (kind, id)
        )
        """,
        "CREATE INDEX matters_by_state ON matters (kind, state, created_at, id)",
    ),
    ("ALTER TABLE sandbox_execs ADD COLUMN approval {json} NOT NULL DEFAULT '{{}}'",),
    (
        "ALTER TABLE sandbox_execs ADD COLUMN network_decisions {json} NOT NULL DEFAULT '{{}}'",
        """
        CREATE TABLE network_decisions (
            exec_id {text} NOT NULL REFERENCES sandbox_execs (exec_id),
            project_id {text} NOT NULL,
            number {integer} NOT NULL,
            at {time} NOT NULL,
            host {text} NOT NULL,
            port {integer} NOT NULL,
            address {text} NOT NULL,
            allowed {boolean} NOT NULL,
            rule {text} NOT NULL,
            secret {text} NOT NULL,
            sent {integer},
            received {integer},
            PRIMARY KEY (exec_id, number)
        )
        """,
    ),
    ("ALTER TABLE sandbox_execs ADD COLUMN packages {json} NOT NULL DEFAULT '[]'",),
)
